"""Data sets, how they are dealt to clients, and the batches clients train on."""

from collections.abc import Mapping

from hpcfl.data.arrays import Arrays
from hpcfl.data.base import DataConfig
from hpcfl.data.cifar10 import Cifar10
from hpcfl.data.cifar100 import Cifar100
from hpcfl.data.concrete import Concrete
from hpcfl.data.digits import Digits
from hpcfl.data.emnist import Emnist
from hpcfl.data.huggingface import Huggingface
from hpcfl.data.image_folder import ImageFolder
from hpcfl.data.inaturalist import INaturalist
from hpcfl.data.landmarks import Landmarks
from hpcfl.data.leaf import Leaf
from hpcfl.data.quadratics import Quadratics
from hpcfl.data.shakespeare import Shakespeare
from hpcfl.data.stackexchange import StackExchange
from hpcfl.data.stackoverflow import StackOverflow
from hpcfl.data.tff import Tff
from hpcfl.data.tiny_imagenet import TinyImageNet

SOURCES: Mapping[str, type[DataConfig]] = {
    "arrays": Arrays,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "concrete": Concrete,
    "digits": Digits,
    "emnist": Emnist,
    "huggingface": Huggingface,
    "image_folder": ImageFolder,
    "inaturalist": INaturalist,
    "landmarks": Landmarks,
    "leaf": Leaf,
    "quadratics": Quadratics,
    "shakespeare": Shakespeare,
    "stackexchange": StackExchange,
    "stackoverflow": StackOverflow,
    "tff": Tff,
    "tiny_imagenet": TinyImageNet,
}
"""The data sets a job can name as ``data.kind``."""
