# SPDX-License-Identifier: Apache-2.0
"""State that the routes share: models, studies, labels, sessions, the worker and the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request

from vmfseg.model import Predictor
from vmfseg.serving.explanations import Explanations
from vmfseg.serving.gate import Attempts, GateRules
from vmfseg.serving.image_index import ImageIndex
from vmfseg.serving.label_store import LabelStore
from vmfseg.serving.served_models import ServedModel
from vmfseg.serving.store_training import Training
from vmfseg.serving.worker import Worker
from vmfseg.serving.workspace import Sessions, Workspace
from vmfseg.utils.io import StrPath

__all__ = ["Service", "ServiceOptions", "service_of"]


@dataclass(frozen=True)
class ServiceOptions:
    """How a server behaves.

    Attributes:
        token: what clients must show; empty serves this machine only.
        max_upload: bytes of a request.
        queue: jobs that run or wait; further ones get status 503.
        body_timeout: seconds that an upload may pause.
        head_timeout: seconds that request line and headers may take.
        session_expiry: seconds without use after which a session ends.
        device: of a model after a training here.
    """

    token: str = ""
    max_upload: int = 1 << 30
    queue: int = 16
    body_timeout: float = 30.0
    head_timeout: float = 10.0
    session_expiry: int = 3600
    device: str | None = None

    @property
    def gate(self) -> GateRules:
        """What the gate enforces."""
        return GateRules(self.token, self.max_upload, self.body_timeout)


@dataclass
class Service:
    """Models, images, and what is under way.

    Attributes:
        models: by name.
        studies: the images.
        options: how the server behaves.
    """

    models: Mapping[str, ServedModel]
    studies: ImageIndex
    options: ServiceOptions = field(default_factory=ServiceOptions)

    def __post_init__(self) -> None:
        self.labels = LabelStore(self.studies)
        self.workspace = Workspace()
        self.sessions = Sessions(self.workspace, self.options.session_expiry)
        self.worker = Worker(self.options.queue)
        self.explanations = Explanations()
        self.attempts = Attempts()
        self.training = Training(self.labels, self._take_model)

    @property
    def roots(self) -> list[Path]:
        """Folders whose names must not leave the server."""
        bundles = [model.predictor.model.root.absolute() for model in self.models.values()]
        return [self.workspace.root, self.studies.root, *bundles, *(bundle.parent for bundle in bundles)]

    def close(self) -> None:
        """End what runs and remove what is temporary."""
        self.training.close()
        self.worker.close()
        self.workspace.close()

    def _take_model(self, model: ServedModel, weights: StrPath, run: int) -> None:
        old = model.predictor
        new = Predictor.from_bundle(
            old.model.root, self.options.device, checkpoint=weights, batch_size=old.batch_size, trust=old.model.trust
        )
        model.replace(new, run)


def service_of(request: Request) -> Service:
    """Return the service of the app that a request came to."""
    service: Service = request.app.state.service
    return service
