"""Data sets, their partition into clients, and the batches that clients train on."""

from collections.abc import Mapping

from hpcfl.data.base import DataConfig
from hpcfl.data.sources.arrays import Arrays
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.data.sources.cifar100 import Cifar100
from hpcfl.data.sources.concrete import Concrete
from hpcfl.data.sources.digits import Digits
from hpcfl.data.sources.emnist import Emnist
from hpcfl.data.sources.fashion_mnist import FashionMnist
from hpcfl.data.sources.huggingface import Huggingface
from hpcfl.data.sources.image_folder import ImageFolder
from hpcfl.data.sources.inaturalist import INaturalist
from hpcfl.data.sources.landmarks import Landmarks
from hpcfl.data.sources.leaf import Leaf
from hpcfl.data.sources.mnist import Mnist
from hpcfl.data.sources.quadratics import Quadratics
from hpcfl.data.sources.shakespeare import Shakespeare
from hpcfl.data.sources.stackoverflow import StackOverflow
from hpcfl.data.sources.table import Table
from hpcfl.data.sources.tff import Tff
from hpcfl.data.sources.tiny_imagenet import TinyImageNet

SOURCES: Mapping[str, type[DataConfig]] = {
    "arrays": Arrays,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "concrete": Concrete,
    "digits": Digits,
    "emnist": Emnist,
    "fashion_mnist": FashionMnist,
    "huggingface": Huggingface,
    "image_folder": ImageFolder,
    "inaturalist": INaturalist,
    "landmarks": Landmarks,
    "leaf": Leaf,
    "mnist": Mnist,
    "quadratics": Quadratics,
    "shakespeare": Shakespeare,
    "stackoverflow": StackOverflow,
    "table": Table,
    "tff": Tff,
    "tiny_imagenet": TinyImageNet,
}
"""The data sets a job can name as ``data.kind``."""
