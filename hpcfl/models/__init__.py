"""Models, one file each."""

from collections.abc import Mapping

from hpcfl.io.lazy_classes import LazyClasses
from hpcfl.models.base import ModelConfig

MODELS: Mapping[str, type[ModelConfig]] = LazyClasses(
    __name__,
    {
        "char_lstm": "CharLstm",
        "cnn_fedavg": "CnnFedAvg",
        "cnn_pfl": "CnnPfl",
        "lenet": "LeNet",
        "linear": "Linear",
        "logistic": "Logistic",
        "mobilenet_v2": "MobileNetV2",
        "module": "Module",
        "point": "Point",
        "resnet18": "ResNet18",
        "resnet20": "ResNet20",
        "word_lstm": "WordLstm",
    },
)
"""The models a job can name as ``model.name``."""
