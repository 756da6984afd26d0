"""Programs as data: their nodes, and what every room asks of them and does with them."""

from tilewright.ir.control import *
from tilewright.ir.dtypes import *
from tilewright.ir.effects import *
from tilewright.ir.intrinsics import *
from tilewright.ir.literals import *
from tilewright.ir.nodes import *
from tilewright.ir.signature import *
from tilewright.ir.sizes import *
from tilewright.ir.structure import *
from tilewright.ir.substitution import *
from tilewright.ir.visitor import *
from tilewright.ir.walking import *
