"""What `import tilewright` costs: it loads no torch and none of the compiler."""

import importlib.util
import subprocess
import sys


def test_importing_loads_neither_torch_nor_the_compiler():
    code = (
        "import sys, tilewright; print(sorted(m for m in sys.modules if m == 'torch' or m.startswith('tilewright.')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_using_it_loads_no_torch():
    code = "import sys, tilewright; tilewright.jit, tilewright.Kernel; import tilewright.language; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


def test_every_public_name_exists():
    import tilewright

    for name in tilewright.__all__:
        try:
            assert getattr(tilewright, name) is not None
        except ImportError as error:  # of a library that only `make clients` has
            assert error.name == "transformers" and importlib.util.find_spec(tilewright._HOMES[name]) is not None
