"""The figures of an evaluation, from its readings, metrics and audit: scores in all units that apply to the text."""

import math
from collections.abc import Sequence
from typing import Any

from backstory.data import Split, Vocabulary, lossless, unknown_share
from backstory.evaluation.audit import AuditReport
from backstory.evaluation.metrics import MetricSet
from backstory.evaluation.open_vocabulary import open_bits_per_byte
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import Reading
from backstory.readers.registry import parse_stack, stack_name
from backstory.results.common import OverlapRecord, UnknownTokens
from backstory.results.evaluation_record import EvaluationFigures, ReaderScore
from backstory.utils.scores import SplitOverlap, bits, perplexity


def collect_figures(
    setup: EvalSetup,
    readings: dict[str, Reading],
    metrics: MetricSet,
    audit: AuditReport,
    overlap: Sequence[SplitOverlap] | None,
    facts: Sequence[dict[str, Any]] | None = None,
) -> EvaluationFigures:
    """Return the figures of an evaluation from its readings, metrics and audit.

    `facts` of each reader, the innermost first, are those at the end of the text; None takes them from the readers.
    """
    facts = [reader.facts() for reader in setup.stack()] if facts is None else facts
    options, reading, vocabulary = setup.options, readings["text"], setup.dataset.vocabulary
    sections = metrics.results()
    static = (ReaderScore.of_nats("static", readings["static"].nats),) if "static" in readings else ()
    return EvaluationFigures(
        split=setup.split.name,
        reader=stack_name(parse_stack(options.reader)),
        readers=tuple(layer.as_dict() | fact for layer, fact in zip(setup.layers, facts, strict=True)),
        gains=static + sections.pop("gains"),
        after=options.after,
        unit=vocabulary.tokenizer.unit,
        batch_size=reading.batch_size,
        addressing=setup.run.model.inference_overrides().get("core.addressing"),
        lengths=tuple(options.lengths) or None,
        options=options.further() or None,
        **window(setup, math.ceil(reading.tokens / reading.batch_size)),
        **score(reading, setup.split, vocabulary),
        open_bits_per_byte=open_bits_per_byte(setup, reading.nats * reading.tokens),
        policy=sections.pop("policy", None),
        memory=sections.pop("memory", None),
        answers=sections.pop("answers", None),
        recency=sections.pop("recency", None),
        sections=sections,
        overlap=OverlapRecord.measured(overlap),
        audit=audit.record(),
    )


def window(setup: EvalSetup, longest: int) -> dict[str, int | None]:
    """Return the size of the model's window and the tokens that stay in it, if it slid over the longest row; else None."""
    capabilities = setup.run.model.capabilities
    size = capabilities.maximum_length if capabilities.slides else None
    if size is None or longest <= size:
        return {"window": None, "window_keeps": None}
    return {"window": size, "window_keeps": capabilities.keeps}


def score(reading: Reading, split: Split, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the figures of a reading; those per word, character and byte only if the tokens hold all of the text.

    Words of a text are separated by white space, and every line end counts as one: the tokens of the tokenizer `words`.
    """
    total, whole = bits(reading.nats * reading.tokens), lossless(vocabulary, split)
    per_word = reading.nats if vocabulary.tokenizer.name == "words" else None
    per_character = None
    if whole:
        per_word, per_character = reading.nats * reading.tokens / split.words, total / split.characters
    elif vocabulary.tokenizer.unit == "character" and vocabulary.unknown is None:
        per_character = bits(reading.nats)  # all symbols, as many as are counted
    return {
        "tokens": reading.tokens,
        **vars(UnknownTokens.counted(unknown_share(vocabulary, split))),
        "nats_per_token": reading.nats,
        "perplexity": perplexity(reading.nats),
        "bits_per_token": bits(reading.nats),
        "bits_per_character": per_character,
        "bits_per_byte": total / split.bytes if whole else None,
        "words": None if per_word is None else split.words,
        "nats_per_word": per_word,
        "perplexity_per_word": None if per_word is None else perplexity(per_word),
    }
