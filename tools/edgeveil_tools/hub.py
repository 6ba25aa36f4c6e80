"""A run's model for the Hugging Face Hub: a folder with a model card, and its upload."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import UsageError, needs_extra
from edgeveil.evaluation.figures import ACCURACY, AUC, RMSE, federated_text, leading
from edgeveil.jobs import Job
from edgeveil.privacy.guarantee import guarantee_lines
from edgeveil_tools.local.job import submitted
from edgeveil_tools.local.local_run import load_job
from edgeveil_tools.result import MEASURED_ON, SIMULATED, Result, figures_text, write_whole, writing

FILES = {"model.onnx": "model.onnx", "model.safetensors": "weights.safetensors"}
_USE = """\
```python
import edgeveil
from huggingface_hub import hf_hub_download

predictions = edgeveil.predict(hf_hub_download("{repo}", "model.onnx"), records)
```"""


def create_model_folder(
    result: Result,
    folder: str | Path,
    *,
    repo_id: str = "OWNER/NAME",
    intended_use: str = "",
    licence: str = "",
    accept_unprotected: bool = False,
) -> Path:
    """Write model.onnx, weights.safetensors, job.yaml and README.md, the model card.

    Args:
        result: a completed run.
        folder: a new or an empty folder.
        repo_id: name on the Hub, for the card's example.
        intended_use: text on what the model is for, and what it is not for.
        licence: identifier of the Hub, such as `apache-2.0`.
        accept_unprotected: also publish what no guarantee covers: a model without a proven one or
            simulated on records of your own, and exact figures on such records.

    Raises:
        UsageError: the run has no model, nothing protects it, or the folder is not empty.
    """
    _require_protection(result, accept_unprotected=accept_unprotected)
    place = Path(folder)
    with writing(place, "name a folder that you may write to"):
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise UsageError("is not empty", where=str(place), fix="name a new folder")
        job = load_job(result.folder / "job.yaml").alone
        for source, name in FILES.items():
            write_whole(place / name, (result.folder / source).read_bytes())
        write_whole(place / "job.yaml", submitted(job))
        figures = accept_unprotected or _published(result)
        card = _card(result, job, repo_id, intended_use, licence, figures=figures)
        write_whole(place / "README.md", card.encode())
    return place


@needs_extra("hub")
def push_to_hub(
    result: Result,
    repo_id: str,
    *,
    private: bool = True,
    token: str | None = None,
    endpoint: str | None = None,
    **card: Any,
) -> str:
    """Upload a run's model with its card to the Hugging Face Hub; returns the commit's address.

    `private`, `token` and `endpoint` are those of `huggingface_hub.HfApi`; `card` are the options
    of `create_model_folder`. Raises UsageError before anything is sent."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(prefix="edgeveil-hub-") as scratch:
        folder = create_model_folder(result, scratch, repo_id=repo_id, **card)
        api = HfApi(endpoint=endpoint, token=token, library_name="edgeveil")
        api.create_repo(repo_id, private=private, exist_ok=True)
        message = f"Model of the job {result.job}"
        info = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(info.commit_url)


def _published(result: Result) -> bool:
    return bool(result.content["final"]["measured_on"] == MEASURED_ON[True])


def _require_protection(result: Result, *, accept_unprotected: bool) -> None:
    if result.status != "completed" or not result.model.is_file():
        fix = "pass the result of a completed run, with its folder"
        raise UsageError("has no model", where=str(result.folder), fix=fix)
    if accept_unprotected or _published(result):
        return
    why = ""
    if result.content["simulated"]:
        why = "the model was simulated with seeded noise on records of your own: nothing protects"
    elif result.privacy["training"]["status"] != "proven":
        why = (
            "no guarantee is proven for the model, which learned from records of your own: nothing"
        )
        why += " protects"
    if why:
        fix = "publish the model of a fleet, or pass accept_unprotected=True if you may"
        raise UsageError(f"{why} them", where=str(result.folder), fix=fix)


def _card(
    result: Result, job: Job, repo: str, intended_use: str, licence: str, *, figures: bool
) -> str:
    content, schema = result.content, job.data.schema_
    name, value = leading(content["final"])
    task = "tabular-regression" if job.data.target is not None else "tabular-classification"
    if len(job.data.input_shape) > 1:
        task = "image-classification"
    about: dict[str, Any] = {"library_name": "edgeveil", "pipeline_tag": task}
    about["tags"] = ["edgeveil", "federated-learning", "differential-privacy", "onnx"]
    if licence:
        about["license"] = licence
    if figures and value is not None:
        metric = {"type": name.lower(), "value": round(value, 4), "verified": False}
        source = {"name": job.data.source, "type": job.data.source}
        row = {"task": {"type": task}, "dataset": source, "metrics": [metric]}
        about["model-index"] = [{"name": job.job, "results": [row]}]
    head = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    gives = {ACCURACY: "the class", RMSE: "a number", AUC: "an anomaly score"}[job.measure]
    columns = [] if schema is None else [n for one in schema.columns or () for n in one.names]
    parts = {
        "Records": f"Of shape {list(job.data.input_shape)}."
        + f" Columns: {', '.join(columns)}." * bool(columns),
        "Guarantees": _list(dict(guarantee_lines(content["privacy"])))
        + (f"\n\n**{SIMULATED[0].upper()}{SIMULATED[1:]}.**" if content["simulated"] else ""),
        "Figures": _figures(content, name, value, shown=figures),
        "Intended use": intended_use
        or "Not stated. The model's figures hold for records like those of its devices only.",
        "Use": _USE.format(repo=repo),
        "Training": _list(
            {
                "devices": content["devices"],
                "rounds": len(content["rounds"]),
                "method": job.train.method,
                "job": f"`job.yaml`, SHA-256 {job.digest().hex()}",
                "EdgeVeil": content["versions"]["edgeveil"],
            }
        ),
    }
    intro = f"Gives {gives} of a record of `{job.data.source}`. Trained by federated learning."
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    return f"---\n{head}---\n\n# {job.job}\n\n{intro}\n\n{body}\n"


def _figures(content: Mapping[str, Any], name: str, value: float | None, *, shown: bool) -> str:
    final, found = content["final"], dict[str, Any]()
    if shown and value is not None:
        found[name] = f"{value:.4g}, on {final['measured_on']}"
        if final.get("figures"):
            found["others"] = figures_text(final["figures"])
    if federated := final.get("federated"):
        found["on the devices, noised"] = federated_text(federated)
    if not found:
        return "None: the test records were the owners' own, and no guarantee covers exact figures."
    return _list(found)


def _list(rows: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name.strip()}: {value}" for name, value in rows.items())
