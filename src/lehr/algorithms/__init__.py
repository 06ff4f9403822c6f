"""Training algorithms, one file for each paper. Each is an `Algorithm` and describes itself."""

from lehr.algorithms.abc_net import ABCNet
from lehr.algorithms.algorithm import Algorithm
from lehr.algorithms.ana import ANA
from lehr.algorithms.binary_connect import BinaryConnect
from lehr.algorithms.description import Description
from lehr.algorithms.estimated import Estimated, EstimatorData
from lehr.algorithms.full_precision import FullPrecision
from lehr.algorithms.group_net import GroupNet
from lehr.algorithms.gxnor_net import GXNORNet
from lehr.algorithms.inq import INQ
from lehr.algorithms.lsq import LSQ
from lehr.algorithms.sttn import STTN
from lehr.algorithms.ttq import TTQ
from lehr.algorithms.twn import TWN
from lehr.algorithms.xnor_net import XNORNet

__all__ = [
    "ANA",
    "INQ",
    "LSQ",
    "STTN",
    "TTQ",
    "TWN",
    "ABCNet",
    "Algorithm",
    "BinaryConnect",
    "Description",
    "Estimated",
    "EstimatorData",
    "FullPrecision",
    "GXNORNet",
    "GroupNet",
    "XNORNet",
]
