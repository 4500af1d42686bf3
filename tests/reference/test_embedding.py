import numpy as np

from nf4tui.bf16 import bf16_from_float32, round_to_bf16
from nf4tui.models.weights import DenseTensor
from nf4tui.reference.embedding import embedding_forward
from nf4tui.reference.rounding import BF16

TABLE = np.random.default_rng(0).standard_normal((11, 6), dtype=np.float32)
IDS = np.array([[10, 0, 3], [3, 3, 1]])


def test_rows_are_looked_up_exactly() -> None:
    for dtype in (np.float32, np.float64):
        x = embedding_forward(IDS, DenseTensor(TABLE), dtype)
        assert x.shape == (2, 3, 6) and x.dtype == dtype
        np.testing.assert_array_equal(x[1, 0], TABLE[3])
    stored = bf16_from_float32(TABLE)
    np.testing.assert_array_equal(
        embedding_forward(IDS, DenseTensor(stored), np.float64)[0, 0], round_to_bf16(TABLE)[10]
    )


def test_a_float32_table_is_rounded_where_the_kernel_stores_bfloat16() -> None:
    x = embedding_forward(IDS, DenseTensor(TABLE), np.float32, BF16)
    np.testing.assert_array_equal(x, round_to_bf16(TABLE)[IDS])
