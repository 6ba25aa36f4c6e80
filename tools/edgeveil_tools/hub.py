"""A run's model for the Hugging Face Hub: a folder with a model card, and its upload."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import UsageError, needs_extra
from edgeveil.evaluation.figures import ACCURACY, RMSE, federated_text, leading
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
    fix, what = "pass the result of a completed run, with its folder", ""
    if result.status != "completed" or not result.model.is_file():
        what = "has no model"
    elif not (accept_unprotected or _published(result)):
        fix = "publish the model of a fleet, or pass accept_unprotected=True if you may"
        if result.content["simulated"]:
            what = "was simulated on records of your own with seeded noise: nothing protects them"
        elif result.privacy["training"]["status"] != "proven":
            what = "has no proven guarantee: nothing protects the records that it learned from"
    if what:
        raise UsageError(what, where=str(result.folder), fix=fix)


def _card(
    result: Result, job: Job, repo: str, intended_use: str, licence: str, *, figures: bool
) -> str:
    content, schema, shape = result.content, job.data.schema_, job.data.input_shape
    final, notes = content["final"], list[str]()
    name, value = leading(final)
    gives = {ACCURACY: "classification", RMSE: "regression"}.get(job.measure, "anomaly-detection")
    task = f"{'image' if len(shape) > 1 else 'tabular'}-{gives}"
    about: dict[str, Any] = {"library_name": "edgeveil", "pipeline_tag": task}
    about["tags"] = ["edgeveil", "federated-learning", "differential-privacy", "onnx"]
    if licence:
        about["license"] = licence
    if figures and value is not None:
        metric = {"type": name.lower(), "value": round(value, 4)}
        dataset = {"name": job.data.source, "type": job.data.source}
        row = {"task": {"type": task}, "dataset": dataset, "metrics": [metric]}
        about["model-index"] = [{"name": job.job, "results": [row]}]
        notes.append(f"- {name}: {value:.4g}, on {final['measured_on']}")
        notes += [f"- others: {figures_text(final['figures'])}"] if final.get("figures") else []
    if final.get("federated"):
        notes.append(f"- on the devices, noised: {federated_text(final['federated'])}")
    none = "None: the test records were the owners' own, and no guarantee covers exact figures."
    columns = [name for one in (schema and schema.columns) or () for name in one.names]
    parts = {
        "Guarantees": "\n".join(f"- {k.strip()}: {v}" for k, v in guarantee_lines(result.privacy))
        + (f"\n- note: {SIMULATED}" if content["simulated"] else ""),
        "Figures": "\n".join(notes) or none,
        "Intended use": intended_use or "Not stated.",
        "Use": _USE.format(repo=repo),
        "Training": f"{content['devices']} devices, {len(content['rounds'])} rounds of"
        f" `{job.train.method}`; records of shape {list(shape)}{': ' * bool(columns)}"
        f"{', '.join(columns)}. Job: `job.yaml`, SHA-256 {job.digest().hex()}."
        f" EdgeVeil {content['versions']['edgeveil']}.",
    }
    head = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    what = f"Records of `{job.data.source}`, trained by federated learning."
    return f"---\n{head}---\n\n# {job.job}\n\n{what}\n\n{body}\n"
