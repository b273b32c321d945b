"""Figures of a benchmark with their provenance, as a file of `results/`."""

import json
from pathlib import Path
from typing import Any

from backstory.storage.provenance import commit, now, processor, versions


def write(out: Path, benchmark: str, device: str = "cpu", **figures: Any) -> None:
    """Write the figures as JSON, with the commit, the versions and the device."""
    # Imported here, because contenders start their processes from one without torch.
    import torch

    from backstory.models import device_name

    made_by = processor() if device == "cpu" else device_name(torch.device(device))
    origin = {"commit": commit(), "versions": versions(), "device": made_by, "started": now()}
    out.write_text(json.dumps({"benchmark": benchmark, **figures, "provenance": origin}, indent=1) + "\n")
