"""Models, one file each."""

from collections.abc import Mapping

from hpcfl.models.base import ModelConfig
from hpcfl.models.char_lstm import CharLstm
from hpcfl.models.cnn_fedavg import CnnFedAvg
from hpcfl.models.cnn_pfl import CnnPfl
from hpcfl.models.lenet import LeNet
from hpcfl.models.linear import Linear
from hpcfl.models.logistic import Logistic
from hpcfl.models.mobilenet_v2 import MobileNetV2
from hpcfl.models.module import Module
from hpcfl.models.point import Point
from hpcfl.models.resnet18 import ResNet18
from hpcfl.models.resnet20 import ResNet20
from hpcfl.models.word_lstm import WordLstm

MODELS: Mapping[str, type[ModelConfig]] = {
    "char_lstm": CharLstm,
    "cnn_fedavg": CnnFedAvg,
    "cnn_pfl": CnnPfl,
    "lenet": LeNet,
    "linear": Linear,
    "logistic": Logistic,
    "mobilenet_v2": MobileNetV2,
    "module": Module,
    "point": Point,
    "resnet18": ResNet18,
    "resnet20": ResNet20,
    "word_lstm": WordLstm,
}
"""The models a job can name as ``model.name``."""
