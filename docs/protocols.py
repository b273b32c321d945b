"""How a run departs from the published system, in its training and its tags, in words: for the table of evidence."""

from collections.abc import Iterator, Sequence

from backstory.context.examination import SPLITS
from backstory.context.experiments import EXPERIMENTS
from backstory.data.tags import GOLD
from backstory.papers.paper import Cost
from backstory.papers.suite import Scale
from backstory.results.reproduction_record import ProtocolRecord
from backstory.results.suite_run_record import RunRecord
from backstory.utils.errors import plural
from backstory.utils.formats import model_size

NOT_RECORDED = "how it was trained is not recorded"
PARTLY_RECORDED = "weight decay, decay of the rate, clipping, averaging, AR and TAR not recorded"


def differences(ours: ProtocolRecord, published: ProtocolRecord) -> list[str]:
    """Return the differences between two trainings. Fields that an older result lacks are mentioned, not compared."""
    pairs = zip(_respects(ours), _respects(published), strict=False)  # an older record has only the first ones
    departures = [words.format(one, other) for (words, one), (_, other) in pairs if one != other]
    rates = [f"{p.finetune_learning_rate:g}" for p in (ours, published) if p.whole and p.finetune_epochs]
    if len(set(rates)) == 2:
        departures.append("fine-tuning at rate {} for {}".format(*rates))
    if ours.init_from != published.init_from:
        departures.append(f"from the trained {ours.init_from}" if ours.init_from else "from scratch")
    return departures if ours.whole else [*departures, PARTLY_RECORDED]


def size(parameters: int, printed: str, scale: Scale) -> list[str]:
    """Return the number of parameters, unless it is the printed one, cut off or rounded: `18.3 M` of 18,392,574."""
    shown = f"{model_size(parameters, 2 if scale == 'small' else 3)} parameters"
    if printed:
        number = printed.split()[0]
        unit = 10 ** -len(number.partition(".")[2])
        return [] if abs(parameters / 1e6 - float(number)) < unit else [f"{shown} for {printed}"]
    return [shown] if scale == "small" else []


def length(protocol: ProtocolRecord) -> str:
    """Return the epochs, with those of fine-tuning separate: `12 + 6`."""
    epochs = f"{protocol.epochs} + {protocol.finetune_epochs}" if protocol.finetune_epochs else str(protocol.epochs)
    return epochs if protocol.minutes is None else f"{protocol.minutes:g} minutes of {epochs}"


def _respects(protocol: ProtocolRecord) -> Iterator[tuple[str, str]]:
    """Yield the properties of a training, each with a phrase that compares it with another."""
    yield "{} for {}", protocol.corpus
    yield "{} for {} epochs", length(protocol)
    yield "{} for {}", protocol.optimizer
    yield "rate {} for {}", f"{protocol.learning_rate:g}"
    yield "batches of {} for {}", f"{protocol.batch_size} x {protocol.segment}"
    if protocol.whole:
        yield "{} for {}", _schedule(protocol)
        yield "weight decay {} for {}", f"{protocol.weight_decay:g}"
        yield "clipping at {} for {}", f"{protocol.clip:g}" if protocol.clip else "no norm"
        yield "{} for {}", _averaging(protocol)
        yield "AR {} for {}", f"{protocol.activation_l2:g}"
        yield "TAR {} for {}", f"{protocol.temporal_l2:g}"


def _schedule(protocol: ProtocolRecord) -> str:
    """Return the decay of the learning rate with the settings that its kind uses."""
    patience = protocol.decay_patience or 0
    epochs = ", ".join(map(str, protocol.decay_epochs or ()))
    kinds = {
        "constant": "a constant rate",
        "plateau": f"the rate times {protocol.decay_factor:g} once validation stalls"
        + (f" for {patience} {plural('epoch', patience)}" if patience else ""),
        "step": f"the rate times {protocol.decay_factor:g} after epochs {epochs}",
        "cosine": "a rate that falls along a cosine",
        "linear": f"a rate that falls linearly after {protocol.decay_start:.0%} of the epochs",
    }
    warmup = f" after {protocol.warmup_steps} steps of warm-up" if protocol.warmup_steps else ""
    return kinds[str(protocol.schedule)] + warmup


def _averaging(protocol: ProtocolRecord) -> str:
    kinds = {
        "none": "no averaging",
        "triggered": f"averaging once validation stalls for {protocol.trigger} epochs",
        "always": "averaging from the first step",
    }
    return kinds[str(protocol.averaging)]


def depends_on_tags(cost: Cost) -> bool:
    """Return True if a cost depends on the tags of words."""
    return EXPERIMENTS[cost.experiment].tagged or (bool(cost.by) and SPLITS[cost.by].needs == "tags")


def other_tags(theirs: str, runs: Sequence[RunRecord]) -> list[str]:
    """Return the departure for tags that are not the paper's, if any. The authors' tags are files by the corpora."""
    sources = {one.tagger for run in runs for one in run.examinations if one.tagger is not None}
    if not sources:
        return [f"tags of a tagger that is not recorded, perhaps not {theirs}"]
    return (
        [] if all(source.startswith(f"{GOLD} (") for source in sources) else [f"tags of another tagger than {theirs}"]
    )
