"""The published sources of methods, models and data sets, in BibTeX.

A new method, model or data set has a line in METHODS, MODELS or DATA: the keys of its entries.  An
entry holds what its publication prints; what is not certain is left out.
"""

from collections.abc import Mapping

Keys = tuple[str, ...]


def _entry(kind: str, key: str, **fields: str) -> str:
    lines = "".join(f"  {name} = {{{text}}},\n" for name, text in fields.items())
    return f"@{kind}{{{key},\n{lines}}}\n"


def _paper(key: str, author: str, title: str, booktitle: str, year: str, arxiv: str = "") -> str:
    more = {"eprint": arxiv, "archiveprefix": "arXiv"} if arxiv else {}
    fields = {"author": author, "title": title, "booktitle": booktitle, "year": year}
    return _entry("inproceedings", key, **fields, **more)


def _preprint(key: str, author: str, title: str, year: str, arxiv: str) -> str:
    fields = {"author": author, "title": title, "year": year}
    return _entry("misc", key, **fields, eprint=arxiv, archiveprefix="arXiv")


_ICML = "International Conference on Machine Learning"
_ICLR = "International Conference on Learning Representations"
_NEURIPS = "Advances in Neural Information Processing Systems"
_CVPR = "IEEE/CVF Conference on Computer Vision and Pattern Recognition"
_ECCV = "European Conference on Computer Vision"

_TEXTS = (
    _paper(
        "acar2021",
        "Acar, Durmus Alp Emre and Zhao, Yue and Matas Navarro, Ramon and Mattina, Matthew and "
        "Whatmough, Paul N. and Saligrama, Venkatesh",
        "Federated Learning Based on Dynamic Regularization",
        _ICLR,
        "2021",
        "2111.04263",
    ),
    _entry(
        "misc",
        "alpaydin1998",
        author="Alpaydin, Ethem and Kaynak, Cenk",
        title="Optical Recognition of Handwritten Digits",
        howpublished="UCI Machine Learning Repository",
        year="1998",
    ),
    _preprint(
        "caldas2018",
        "Caldas, Sebastian and Duddu, Sai Meher Karthik and Wu, Peter and Li, Tian and "
        r"Kone{\v{c}}n{\'y}, Jakub and McMahan, H. Brendan and Smith, Virginia and Talwalkar, "
        "Ameet",
        "{LEAF}: A Benchmark for Federated Settings",
        "2018",
        "1812.01097",
    ),
    _preprint(
        "cohen2017",
        r"Cohen, Gregory and Afshar, Saeed and Tapson, Jonathan and van Schaik, Andr{\'e}",
        "{EMNIST}: an extension of {MNIST} to handwritten letters",
        "2017",
        "1702.05373",
    ),
    _paper(
        "cutkosky2019",
        "Cutkosky, Ashok and Orabona, Francesco",
        "Momentum-Based Variance Reduction in Non-Convex {SGD}",
        _NEURIPS,
        "2019",
        "1905.10018",
    ),
    _preprint(
        "granqvist2024",
        "Granqvist, Filip and others",
        "pfl-research: simulation framework for accelerating research in Private Federated "
        "Learning",
        "2024",
        "2404.06430",
    ),
    _paper(
        "he2016",
        "He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian",
        "Deep Residual Learning for Image Recognition",
        "IEEE Conference on Computer Vision and Pattern Recognition",
        "2016",
        "1512.03385",
    ),
    _preprint(
        "hsu2019",
        "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        "Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification",
        "2019",
        "1909.06335",
    ),
    _paper(
        "hsu2020",
        "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        "Federated Visual Classification with Real-World Data Distribution",
        _ECCV,
        "2020",
        "2003.08082",
    ),
    _paper(
        "karimireddy2020",
        "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and "
        "Stich, Sebastian U. and Suresh, Ananda Theertha",
        "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        _ICML,
        "2020",
        "1910.06378",
    ),
    _paper(
        "karimireddy2021",
        "Karimireddy, Sai Praneeth and Jaggi, Martin and Kale, Satyen and Mohri, Mehryar and "
        "Reddi, Sashank J. and Stich, Sebastian U. and Suresh, Ananda Theertha",
        "Breaking the Centralized Barrier for Cross-Device Federated Learning",
        _NEURIPS,
        "2021",
        "2008.03606",
    ),
    _paper(
        "kingma2015",
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        _ICLR,
        "2015",
        "1412.6980",
    ),
    _entry(
        "techreport",
        "krizhevsky2009",
        author="Krizhevsky, Alex",
        title="Learning Multiple Layers of Features from Tiny Images",
        institution="University of Toronto",
        year="2009",
    ),
    _entry(
        "misc",
        "le2015",
        author="Le, Ya and Yang, Xuan",
        title="Tiny {ImageNet} Visual Recognition Challenge",
        howpublished="Course project, CS 231N, Stanford University",
        year="2015",
    ),
    _entry(
        "article",
        "lecun1998",
        author=r"LeCun, Yann and Bottou, L{\'e}on and Bengio, Yoshua and Haffner, Patrick",
        title="Gradient-Based Learning Applied to Document Recognition",
        journal="Proceedings of the IEEE",
        year="1998",
    ),
    _paper(
        "li2020",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, "
        "Ameet and Smith, Virginia",
        "Federated Optimization in Heterogeneous Networks",
        "Proceedings of Machine Learning and Systems",
        "2020",
        "1812.06127",
    ),
    _preprint(
        "liu2023",
        "Liu, Yixing and Sun, Yan and Ding, Zhengtao and Shen, Li and Liu, Bo and Tao, Dacheng",
        "Enhance Local Consistency in Federated Learning: A Multi-Step Inertial Momentum Approach",
        "2023",
        "2302.05726",
    ),
    _paper(
        "mcmahan2017",
        r"McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
        r"Ag{\"u}era y Arcas, Blaise",
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "International Conference on Artificial Intelligence and Statistics",
        "2017",
        "1602.05629",
    ),
    _paper(
        "ozfatura2021",
        r"Ozfatura, Emre and Ozfatura, Kerem and G{\"u}nd{\"u}z, Deniz",
        "{FedADC}: Accelerated Federated Learning with Drift Control",
        "IEEE International Symposium on Information Theory",
        "2021",
        "2012.09102",
    ),
    _paper(
        "qu2022",
        "Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo",
        "Generalized Federated Learning via Sharpness Aware Minimization",
        _ICML,
        "2022",
        "2206.02618",
    ),
    _paper(
        "reddi2021",
        "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, "
        r"Keith and Kone{\v{c}}n{\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan",
        "Adaptive Federated Optimization",
        _ICLR,
        "2021",
        "2003.00295",
    ),
    _paper(
        "sandler2018",
        "Sandler, Mark and Howard, Andrew and Zhu, Menglong and Zhmoginov, Andrey and Chen, "
        "Liang-Chieh",
        "{MobileNetV2}: Inverted Residuals and Linear Bottlenecks",
        _CVPR,
        "2018",
        "1801.04381",
    ),
    _paper(
        "sutskever2013",
        "Sutskever, Ilya and Martens, James and Dahl, George and Hinton, Geoffrey",
        "On the importance of initialization and momentum in deep learning",
        _ICML,
        "2013",
    ),
    _paper(
        "vanhorn2018",
        "Van Horn, Grant and Mac Aodha, Oisin and Song, Yang and Cui, Yin and Sun, Chen and "
        "Shepard, Alex and Adam, Hartwig and Perona, Pietro and Belongie, Serge",
        "The {iNaturalist} Species Classification and Detection Dataset",
        _CVPR,
        "2018",
        "1707.06642",
    ),
    _paper(
        "varno2022",
        "Varno, Farshid and others",
        "{AdaBest}: Minimizing Client Drift in Federated Learning via Adaptive Bias Estimation",
        _ECCV,
        "2022",
        "2204.13170",
    ),
    _paper(
        "weyand2020",
        r"Weyand, Tobias and Araujo, Andr{\'e} and Cao, Bingyi and Sim, Jack",
        "{Google Landmarks Dataset v2}: A Large-Scale Benchmark for Instance-Level Recognition "
        "and Retrieval",
        _CVPR,
        "2020",
        "2004.01804",
    ),
    _paper(
        "wu2018",
        "Wu, Yuxin and He, Kaiming",
        "Group Normalization",
        _ECCV,
        "2018",
        "1803.08494",
    ),
    _preprint(
        "xiao2017",
        "Xiao, Han and Rasul, Kashif and Vollgraf, Roland",
        "{Fashion-MNIST}: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        "2017",
        "1708.07747",
    ),
    _preprint(
        "xu2021",
        "Xu, Jing and Wang, Sen and Wang, Liwei and Yao, Andrew Chi-Chih",
        "{FedCM}: Federated Learning with Client-level Momentum",
        "2021",
        "2106.10874",
    ),
    _entry(
        "article",
        "yeh1998",
        author="Yeh, I-Cheng",
        title="Modeling of Strength of High-Performance Concrete Using Artificial Neural Networks",
        journal="Cement and Concrete Research",
        year="1998",
    ),
    _preprint(
        "zaccone2023",
        "Zaccone, Riccardo and Masone, Carlo and Ciccone, Marco",
        "Communication-Efficient Heterogeneous Federated Learning with Generalized Heavy-Ball "
        "Momentum",
        "2023",
        "2311.18578",
    ),
)
ENTRIES: Mapping[str, str] = {text[text.index("{") + 1 : text.index(",")]: text for text in _TEXTS}
"""BibTeX by key."""

METHODS: Mapping[str, Keys] = {
    "adabest": ("varno2022",),
    "centralized": ("sutskever2013",),
    "fedadagrad": ("reddi2021",),
    "fedadam": ("reddi2021",),
    "fedadc": ("ozfatura2021",),
    "fedavg": ("mcmahan2017",),
    "fedavgm": ("hsu2019",),
    "fedcm": ("xu2021",),
    "feddyn": ("acar2021",),
    "fedhbm": ("zaccone2023",),
    "fedmim": ("liu2023",),
    "fedprox": ("li2020",),
    "fedsam": ("qu2022",),
    "fedyogi": ("reddi2021",),
    "ghb": ("zaccone2023",),
    "localghb": ("zaccone2023",),
    "mime": ("karimireddy2021",),
    "mimeadam": ("karimireddy2021", "kingma2015"),
    "mimelite": ("karimireddy2021",),
    "mimeliteadam": ("karimireddy2021", "kingma2015"),
    "mimelitemom": ("karimireddy2021",),
    "mimemom": ("karimireddy2021",),
    "mimemvr": ("karimireddy2021", "cutkosky2019"),
    "mofedsam": ("qu2022",),
    "scaffold": ("karimireddy2020",),
    "server_only": ("mcmahan2017",),
    "server_only adam": ("mcmahan2017", "kingma2015"),
    "server_only mvr": ("mcmahan2017", "cutkosky2019"),
}
"""The entries of each algorithm; also of an algorithm with one value of ``algorithm.optimizer``."""

MODELS: Mapping[str, Keys] = {
    "char_lstm": ("caldas2018",),
    "cnn_fedavg": ("mcmahan2017",),
    "cnn_pfl": ("granqvist2024",),
    "lenet": ("hsu2020",),
    "linear": (),
    "logistic": (),
    "mobilenet_v2": ("sandler2018",),
    "module": (),
    "point": (),
    "resnet18": ("he2016",),
    "resnet20": ("he2016", "wu2018"),
    "word_lstm": ("reddi2021",),
}
"""The entries of each model; none for those that no paper introduced."""

DATA: Mapping[str, Keys] = {
    "arrays": (),
    "cifar10": ("krizhevsky2009",),
    "cifar100": ("krizhevsky2009",),
    "concrete": ("yeh1998",),
    "digits": ("alpaydin1998",),
    "emnist": ("cohen2017",),
    "fashion_mnist": ("xiao2017",),
    "huggingface": (),
    "image_folder": (),
    "inaturalist": ("hsu2020", "vanhorn2018"),
    "landmarks": ("hsu2020", "weyand2020"),
    "leaf": ("caldas2018",),
    "mnist": ("lecun1998",),
    "quadratics": ("karimireddy2020",),
    "shakespeare": ("caldas2018",),
    "stackoverflow": ("reddi2021",),
    "tff": ("caldas2018",),
    "tff cifar100": ("krizhevsky2009",),
    "tiny_imagenet": ("le2015",),
}
"""The entries of each data set, also with one ``data.dataset``; none for the user's own files."""
