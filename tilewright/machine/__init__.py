"""What a machine is, as data that checks itself."""

from tilewright.machine.arch import *
from tilewright.machine.dot import *
from tilewright.machine.fragment_codes import *
from tilewright.machine.fragment_records import *
from tilewright.machine.instructions import *
from tilewright.machine.rates import *
from tilewright.machine.tile import *
