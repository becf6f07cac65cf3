"""Arrow's compute functions, which pyarrow makes when it is imported, where no type checker sees them."""

from typing import Any

import pyarrow.compute

kernels: Any = pyarrow.compute
