"""Foreign folders of Hugging Face models are checked before anything in them is opened."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch

from backstory.interop.folders import look
from backstory.interop.hugging_face import load
from backstory.utils.errors import UserError

pytest.importorskip("transformers", reason="needs the extra hf")
TEXT = "the cat sat on the mat .\n" * 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    foreign.saved(path, text=TEXT, n_positions=64)
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def indexed(folder: Path, *names: str) -> None:
    """In the place of one file of weights, an index of these."""
    listed = {str(number): name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def configured(folder: Path, **changes: Any) -> None:
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | changes))


class Payload:
    """Object whose pickle leaves a trace when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def test_what_save_pretrained_wrote_is_taken(made: Path) -> None:
    held = look(made)
    model = foreign.causal("GPT2", json.loads((made / "config.json").read_text())["vocab_size"], n_positions=64)
    assert held.elements == sum(p.numel() for p in model.parameters())


def test_an_index_never_leads_to_a_pickle(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    indexed(folder, "shard.safetensors")
    assert look(folder).tensors
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "canary")))
    indexed(folder, "shard.safetensors", "pytorch_model.bin")
    with pytest.raises(UserError, match=r"lists 'pytorch_model.bin', and weights are read only from safetensors"):
        load(f"hf:{folder}")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "..", "", "a\0.safetensors"])
def test_an_index_never_leads_elsewhere(folder: Path, name: str) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    indexed(folder, name)
    with pytest.raises(UserError, match="safetensors files beside it"):
        look(folder)


@pytest.mark.parametrize("content", [b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": null}}', b"{", b"\xff"])
def test_an_index_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(UserError):
        look(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
def test_a_link_is_not_followed_out_and_a_pipe_not_waited_for(folder: Path, name: str) -> None:
    shutil.move(folder / name, folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)
    with pytest.raises(UserError, match=f"{name}: a link leads out"):
        look(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=f"{name}: it is not a regular file"):
        look(folder)


def test_snapshots_of_the_hub_s_cache_are_links_to_its_blobs(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--nobody--tiny"
    snapshot = cache / "snapshots" / "abc"
    shutil.copytree(made, cache / "blobs")
    snapshot.mkdir(parents=True)
    for path in made.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert load(f"hf:{snapshot}").model.vocabulary_size
    (tmp_path / "secret").write_text("{}")
    (snapshot / "chat_template.jinja").symlink_to("../../../secret")
    with pytest.raises(UserError, match="a link leads out"):
        look(snapshot)


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_head": -1}, "has n_head -1, which no model has"),
        ({"n_layer": 10**7}, "has n_layer 10000000, and the weights have only 28 tensors"),
        ({"vocab_size": 10**12}, "its settings ask for far more than"),
        ({"n_embd": 10**7, "n_head": 1}, "its settings ask for far more than"),
        ({"n_positions": 10**11}, "its settings ask for far more than"),
        ({"n_layer": 900}, "its settings ask for far more than"),
        ({"transformers_weights": "../model.safetensors"}, "which leads elsewhere and is never followed"),
        ({"attn_implementation": "somebody/kernel"}, "which leads elsewhere and is never followed"),
        ({"n_head": 7}, "cannot be loaded"),
        ({"n_head": 0}, "cannot be loaded"),
    ],
)
def test_settings_that_the_weights_were_not_made_with(folder: Path, changes: dict[str, Any], told: str) -> None:
    configured(folder, **changes)
    with pytest.raises(UserError, match=told):
        load(f"hf:{folder}")


def test_an_adapter_is_no_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(UserError, match="holds an adapter, whose model is elsewhere"):
        look(folder)


def test_a_model_with_an_encoder_is_called_so(tmp_path: Path) -> None:
    """BART's decoder can be loaded by itself, and then lacks weights that the whole model shares with its encoder."""
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    layers, width = {"encoder_layers": 1, "decoder_layers": 1}, {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = hf.BartConfig(vocab_size=17, d_model=16, max_position_embeddings=32, **layers, **width)
    hf.BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    with pytest.raises(
        UserError, match="reads a text with an encoder and writes another; choose a causal language model"
    ):
        load(f"hf:{tmp_path / 'bart'}")


def test_damaged_weights_are_called_so(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file({k: torch.full_like(v, torch.nan) for k, v in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(UserError, match="scores that are not numbers: its weights are damaged"):
        load(f"hf:{folder}")


@pytest.mark.parametrize("header", [b"[]", b'{"a": {}}', b'{"a": {"shape": "xy"}}', b"{", b""])
def test_headers_that_are_none(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UserError, match=r"damaged"):
        look(folder)
