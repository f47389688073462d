"""Models, one file each."""

from collections.abc import Mapping

from hpcfl.models.base import ModelConfig
from hpcfl.models.char_lstm import CharLstm
from hpcfl.models.lenet import LeNet
from hpcfl.models.linear import Linear
from hpcfl.models.point import Point
from hpcfl.models.resnet20 import ResNet20
from hpcfl.models.word_lstm import WordLstm

MODELS: Mapping[str, type[ModelConfig]] = {
    "char_lstm": CharLstm,
    "lenet": LeNet,
    "linear": Linear,
    "point": Point,
    "resnet20": ResNet20,
    "word_lstm": WordLstm,
}
"""The models a job can name as ``model.name``."""
