"""Export a trained run as a folder that `AutoModelForCausalLM.from_pretrained` loads, with its tokenizer and a model card."""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from backstory.config import changes, to_dict
from backstory.data import Vocabulary
from backstory.interop.folders import need
from backstory.models import count_parameters
from backstory.reports import figures_table, to_markdown, trainings_table
from backstory.reports.tables import escape_markdown
from backstory.results import read
from backstory.runs.run import Run, load_run, load_weights, weights
from backstory.storage.atomic import check_writable, naming, sweep_abandoned, system_errors, unfinished
from backstory.storage.run_files import RESULT, check_outside_runs
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError

if TYPE_CHECKING:
    from backstory.interop.modeling import BackstoryForCausalLM

FOLDER, CARD = "export", "README.md"
VOCABULARY = "backstory.json"
"""File of the run's vocabulary, with which `hf:EXPORT` splits a text into the same units as the run."""


@checked()
def export(run: Path | str, out: Path | str | None = None) -> Path:
    """Write config.json, generation_config.json, model.safetensors, the tokenizer's files, the vocabulary and README.md into a
    new folder.

    That is `out`, else RUN/export, and it is returned. Raises UserError where it is there already or cannot be written, for
    what is no run, and without transformers.
    """
    need("transformers", "hf", "export")
    out = Path(run, FOLDER) if out is None else Path(out)
    if os.path.lexists(out):
        raise UserError(f"{out} exists; choose another folder with --out, or remove it")
    loaded = load_run(Path(run))
    _check_finite(loaded)
    check_outside_runs(out)
    check_writable(out)

    from backstory.interop.modeling import fast_tokenizer, save_tokenizer

    model, tokenizer, card = causal_lm(loaded), fast_tokenizer(loaded.vocabulary), model_card(loaded)
    out.parent.mkdir(parents=True, exist_ok=True)
    # It gets its name once it is complete.
    sweep_abandoned(out)
    folder = unfinished(out)
    try:
        with naming(out, folder), system_errors(out):
            model.save_pretrained(folder)
            save_tokenizer(tokenizer, folder)
            (folder / VOCABULARY).write_text(json.dumps(loaded.vocabulary.to_json()), encoding="utf-8")
            (folder / CARD).write_text(card, encoding="utf-8")
        for path in folder.iterdir():  # the weights come as a file for their owner alone
            path.chmod((folder / CARD).stat().st_mode)
        try:
            os.replace(folder, out)
        except OSError:
            if not os.path.lexists(out):
                raise
            raise UserError(f"another export has made {out} meanwhile; choose another folder with --out") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def _check_finite(run: Run) -> None:
    """Raise UserError for weights that are NaN or infinite: nothing could be read with the export."""
    broken = next((name for name, tensor in weights(run.model).items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise UserError(f"{run.folder} cannot be exported: not all numbers of {broken} are finite; train it again")


def causal_lm(run: Run) -> "BackstoryForCausalLM":
    """Return a run's model as one of transformers, in evaluation mode, with a copy of its weights.

    It continues a prompt as `backstory generate` does: from the same first token, never with `<unk>`, past the ends of lines.
    """
    from transformers import GenerationConfig

    from backstory.interop.exported.model import CORES
    from backstory.interop.modeling import BackstoryConfig, BackstoryForCausalLM, exported_name, fast_tokenizer

    vocabulary, model_config = run.vocabulary, run.config.model
    for part in (model_config.core, model_config.head, model_config.dual, model_config.buffer):
        if not type(part).__module__.startswith("backstory."):
            raise UserError(
                f"the part {part.kind} of {run.folder} comes from a plugin, and only models of Backstory's own parts "
                "(`backstory ls models`) can be exported; train one of these"
            )
    if model_config.core.kind not in CORES:
        raise UserError(
            f"a core of kind {model_config.core.kind} has no exported form; export a run of {', '.join(CORES)}"
        )
    parts, start = to_dict(run.config.model), vocabulary.start
    padding = fast_tokenizer(vocabulary).pad_token_id
    special = {"bos_token_id": start, "pad_token_id": padding}
    model = BackstoryForCausalLM(
        BackstoryConfig(len(vocabulary), parts=parts, weights=run.weights_hash, eos_token_id=start, **special)
    )
    load_weights(model.model, {exported_name(name): tensor for name, tensor in weights(run.model).items()})
    # No token ends a text here: it goes on after the end of a line.
    unknown = None if vocabulary.unknown is None else [vocabulary.unknown]
    model.generation_config = GenerationConfig(**special, suppress_tokens=unknown)
    return model.eval()


def model_card(run: Run) -> str:
    """Return the model card in Markdown: the run, the figures of its result files, and how to load it from its folder."""
    config, name = run.config, run.folder.resolve().name
    unit = run.vocabulary.tokenizer.unit
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            f"tags: [backstory, {config.model.core.kind}]",
            "---",
            f"# {escape_markdown(name)}",
            "",
            f"A language model of {count_parameters(run.model):,} parameters over {len(run.vocabulary):,} types "
            f"({unit}s), trained with Backstory on {escape_markdown(str(run.corpus['name']))} "
            f"({escape_markdown(str(run.corpus['provenance']))}). SHA-256 of its weights: `{run.weights_hash}`.",
            "",
            *_figures(run.folder),
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'folder = "."  # the folder of this file',
            "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)",
            "model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)",
            f'tokens = tokenizer("{_prompt(run.vocabulary)}", return_tensors="pt")',
            "written = model.generate(**tokens, max_new_tokens=50, do_sample=True)[0]",
            "print(tokenizer.decode(written, skip_special_tokens=True))",
            "```",
            "",
            "`modeling_backstory.py` holds the model in plain PyTorch. Where Backstory is installed, `import "
            "backstory.interop` takes the place of `trust_remote_code=True`. A reader (a cache, dynamic evaluation) is no part "
            "of the model, and is not here.",
            "",
            "Logits are log-probabilities: they are normalised already. The cache is the recurrent state.",
            "",
            "There is no dropout: `model.train()` changes nothing, so fine-tuning soon overfits a small text. `backstory train "
            "RECIPE --init-from RUN` trains on with the dropouts and regularizers of the recipe.",
            "",
            "## Settings",
            "",
            "What differs from the defaults of Backstory:",
            "",
            "```yaml",
            yaml.safe_dump({part: changes(getattr(config, part)) for part in ("model", "training")}, sort_keys=False)
            + "```",
            "",
        ]
    )


def _prompt(vocabulary: Vocabulary) -> str:
    """Return the most frequent token of the training text that is a word, or a part of one; empty without any."""
    ranked = np.argsort(-vocabulary.counts, kind="stable").tolist()
    return next((text for i in ranked if (text := vocabulary.decode([i]).strip()).isalpha()), "")


def _figures(folder: Path) -> list[str]:
    """Return the tables of a run's result files, under a heading; nothing if there are none."""
    if not [*folder.glob(RESULT), *folder.glob(f"*/{RESULT}")]:
        return []
    run = read(folder)
    for line in run.unread:
        warnings.warn(f"left out of {CARD}: {line}", stacklevel=2)
    results = [run.current()]  # what is stale is not of the weights that are exported
    tables = [table for table in (figures_table(results), trainings_table(results)) if table.rows]
    note = (
        "A reader other than `static` adds to the model while it reads, in Backstory; what is loaded here is `static`."
    )
    return ["## Figures", "", *(f"{to_markdown(table)}\n" for table in tables), note, ""]
