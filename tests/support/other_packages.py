"""Models of packages that are built on torch.nn's recurrent layers, small: what `replace` meets outside of this house."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, ClassVar
from unittest.mock import MagicMock

import torch

# What the packages below import to search hyperparameters and to read files: of hundreds of MB, and nothing of it runs here.
UNUSED = ("ray", "optuna", "torchaudio", "tornado", "soundfile", "requests")


class _Unused(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class _UnusedFinder:
    """Finds modules of `UNUSED` packages, without which others cannot be imported, where those are not installed."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _UnusedFinder, is_package=True) if name.partition(".")[0] in UNUSED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> Any:
        return _Unused(spec.name)

    @staticmethod
    def exec_module(_module: Any) -> None:
        pass


def allow_unused() -> None:
    """Let the packages be imported without what they do not need here; behind all other finders, so that a real one counts."""
    if _UnusedFinder not in sys.meta_path:
        sys.meta_path.append(_UnusedFinder)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Packaged:
    """A model of another package; `layers` is how many recurrent layers it has, `make` returns it with its inputs."""

    package: str
    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    layers: int
    subclasses: bool = False

    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def _of_forecasting(name: str, **options: Any) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    def make() -> tuple[Any, tuple[Any, ...]]:
        import numpy
        import pandas
        import pytorch_forecasting

        steps, series = 30, 3
        frame = pandas.DataFrame(
            {
                "time_idx": [*range(steps)] * series,
                "series": [str(one) for one in range(series) for _ in range(steps)],
                "value": numpy.random.default_rng(0).standard_normal(series * steps).cumsum(),
            }
        )
        data = pytorch_forecasting.TimeSeriesDataSet(
            frame,
            time_idx="time_idx",
            target="value",
            group_ids=["series"],
            min_encoder_length=0,  # sequences without a step, which their layers take and torch's do not
            max_encoder_length=8,
            max_prediction_length=4,
            time_varying_unknown_reals=["value"],
        )
        model = getattr(pytorch_forecasting, name).from_dataset(data, dropout=0.0, **options)
        x, _ = next(iter(data.to_dataloader(train=False, batch_size=16)))
        return model, (x,)

    return make


def _of_neuralforecast() -> tuple[Any, tuple[Any, ...]]:
    from neuralforecast.losses.pytorch import MQLoss
    from neuralforecast.models import LSTM

    sizes = {"h": 4, "input_size": 8, "encoder_hidden_size": 8, "encoder_n_layers": 2}
    model = LSTM(recurrent=True, encoder_dropout=0.0, loss=MQLoss(level=[80]), **sizes)
    batch = {"insample_y": torch.randn(3, 8, 1), "futr_exog": None, "hist_exog": None, "stat_exog": None}
    return model, (batch,)


def _of_speechbrain() -> tuple[Any, tuple[Any, ...]]:
    from speechbrain.lobes.models.CRDNN import CRDNN
    from speechbrain.nnet.RNN import LSTM

    sizes = {"cnn_channels": [4, 4], "rnn_layers": 2, "rnn_neurons": 8, "dnn_blocks": 1, "dnn_neurons": 8}
    model = CRDNN(input_shape=[2, 20, 16], rnn_class=LSTM, rnn_bidirectional=True, dropout=0.0, **sizes)
    return model, (torch.randn(2, 20, 16),)


MODELS = {
    "TemporalFusionTransformer": Packaged(
        "pytorch_forecasting",
        _of_forecasting("TemporalFusionTransformer", hidden_size=8, attention_head_size=2, hidden_continuous_size=4),
        2,
        subclasses=True,
    ),
    "DeepAR": Packaged("pytorch_forecasting", _of_forecasting("DeepAR", hidden_size=8, rnn_layers=2), 1, subclasses=True),
    "RecurrentNetwork of LSTM": Packaged(
        "pytorch_forecasting", _of_forecasting("RecurrentNetwork", hidden_size=8, cell_type="LSTM"), 1, subclasses=True
    ),
    "RecurrentNetwork of GRU": Packaged(
        "pytorch_forecasting", _of_forecasting("RecurrentNetwork", hidden_size=8, cell_type="GRU"), 1, subclasses=True
    ),
    "LSTM with a projection": Packaged("neuralforecast", _of_neuralforecast, 1),
    "CRDNN": Packaged("speechbrain", _of_speechbrain, 1),
}


def tensors_of(result: Any) -> list[Any]:
    """Return the floating tensors of what a model returns."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, dict):
        result = [*result.values()]
    return [one for part in result for one in tensors_of(part)] if isinstance(result, list | tuple) else []
