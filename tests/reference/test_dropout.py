import numpy as np

from nf4tui.reference.dropout import DropoutKey, dropout_mask

KEY = DropoutKey(seed=3, step=5, micro_batch=1)
PLACES = np.arange(40)


def _mask(
    key: DropoutKey = KEY, name: str = "layers.0.attn.q_proj", width: int = 50, p: float = 0.25
) -> np.ndarray:
    return dropout_mask(key, name, PLACES, width, p, np.float64)


def test_a_mask_repeats_and_each_part_of_its_key_changes_it() -> None:
    np.testing.assert_array_equal(_mask(), _mask())
    others = [
        _mask(DropoutKey(4, 5, 1)),
        _mask(DropoutKey(3, 6, 1)),
        _mask(DropoutKey(3, 5, 0)),
        _mask(name="layers.1.attn.q_proj"),
    ]
    for other in others:
        # Independent masks at p = 1/4 differ in 3/8 of the places.
        assert 0.3 < (other != _mask()).mean() < 0.45


def test_the_kept_share_and_its_scale() -> None:
    mask = dropout_mask(KEY, "a", np.arange(400), 100, 0.1, np.float64)
    assert set(np.unique(mask)) == {0.0, 1 / 0.9}
    # 40,000 trials: the standard deviation of the share is 0.0015.
    assert abs((mask == 0).mean() - 0.1) < 0.006


def test_a_tokens_mask_does_not_depend_on_the_other_tokens() -> None:
    for width in (8, 9, 50, 51):
        whole = _mask(width=width)
        chosen = np.array([37, 2, 11])
        part = dropout_mask(KEY, "layers.0.attn.q_proj", chosen, width, 0.25, np.float64)
        np.testing.assert_array_equal(part, whole[chosen])
