"""The loops of the compiled search that LLVM vectorises: exponentials below a peak, sums over components, maxima.

A pair's exponentials are one array [R, W]: subjects, predicates and objects side by side, each from a multiple of 16 on
and filled up with zeros, so that a loop over all of them has no remainder. Loops index whole arrays, with unsigned
offsets: a slice would count references, and a negative index would be checked for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from polyadic.compiled import compiled as _compiled

# exp(x) = 2^n · exp(f), |f| <= log(2) / 2: plain operations, which are vectorised. Adding 1.5 · 2^52 (float32: 2^23)
# rounds to a whole number and leaves n in the lowest bits. exp(f) is the polynomial with the least error on that
# interval, 3e-16 (float32: 1.5e-5), that begins with 1 + f, so that exp(0) is exactly 1.
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_WHOLE = 1.5 * 2.0**52
_C2, _C3, _C4 = 0.49999999999998322562, 0.16666666666611517933, 0.041666666668137589475
_C5, _C6, _C7 = 0.0083333333708846818187, 0.0013888888516001660142, 0.00019841185218406805681
_C8, _C9, _C10 = 0.00002480193190313320409, 2.763499766455986676e-6, 2.7476743582722015112e-7
_F = np.float32
_LOG2E_32, _LN2_32, _WHOLE_32, _LEAST_32 = _F(_LOG2E), _F(math.log(2)), _F(1.5 * 2.0**23), _F(-87.0)
_ONE_32, _D2_32, _D3_32, _D4_32 = _F(1), _F(0.49999749), _F(0.16741917), _F(0.04183383)
_THIRD_32, _BIAS_32 = _F(1 / 3), np.int32(709921077)


@_compiled(fastmath={"contract"})
def exp(x):  # type: ignore[no-untyped-def]
    """Compute e^x of x <= 0 in float64, to two units in the last place; 0 where it would be denormal."""
    y = x * _LOG2E + _WHOLE
    n = y - _WHOLE
    f = (x - n * _LN2_HIGH) - n * _LN2_LOW
    e = _C5 + f * (_C6 + f * (_C7 + f * (_C8 + f * (_C9 + f * _C10))))
    e = 1.0 + f * (1.0 + f * (_C2 + f * (_C3 + f * (_C4 + f * e))))
    e = np.int64(np.float64(e).view(np.int64) + (np.float64(y).view(np.int64) << 52)).view(np.float64)
    return e if x > -708.0 else 0.0


@_compiled(fastmath={"contract"})
def exp_32(x):  # type: ignore[no-untyped-def]
    """Compute e^x of x <= 0 in float32, to 2.5e-5, and at least e^-87."""
    x = max(x, _LEAST_32)
    y = x * _LOG2E_32 + _WHOLE_32
    n = y - _WHOLE_32
    f = x - n * _LN2_32
    e = _ONE_32 + f * (_ONE_32 + f * (_D2_32 + f * (_D3_32 + f * _D4_32)))
    return np.int32(np.float32(e).view(np.int32) + (np.float32(y).view(np.int32) << 23)).view(np.float32)


@_compiled(fastmath={"contract"}, error_model="numpy")
def cube_root_32(x):  # type: ignore[no-untyped-def]
    """Compute x^(1/3) of x > 0 in float32, to 5e-5: a third of the exponent, then one step of Halley's method."""
    y = np.int32(np.int32(np.float32(np.float32(x).view(np.int32)) * _THIRD_32) + _BIAS_32).view(np.float32)
    cube = y * y * y
    return y * ((cube + x + x) / (cube + cube + x))


def _larger(typing: Any, x: Any, y: Any) -> Any:
    """Return the larger of two numbers that are not NaN; unlike `max`, in a way that is vectorised."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        function = builder.module.declare_intrinsic("llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(function, arguments, fastmath=("nnan", "nsz"))

    return (x(x, y) if x == y else None), generate


larger: Any = intrinsic(_larger)


@_compiled
def places(S, P, O):  # type: ignore[no-untyped-def]
    """Return where predicates and objects start in a pair's exponentials, and W."""
    to_p = (S + 15) // 16 * 16
    to_o = to_p + (P + 15) // 16 * 16
    return to_p, to_o, to_o + (O + 15) // 16 * 16


@_compiled
def find_peaks(x, pair, axis, peaks):  # type: ignore[no-untyped-def]
    """Find the largest score of each row of a pair, and at least the lowest finite number."""
    lowest = np.finfo(x.dtype).min
    for r in range(x.shape[1]):
        best = x[pair, r, 0]
        for i in range(x.shape[2]):
            best = larger(best, x[pair, r, i])
        peaks[pair, axis, r] = max(best, lowest)


@_compiled
def exponentials_32(x, pair, axis, peaks, out, start):  # type: ignore[no-untyped-def]
    """Write the exponentials of one pair's rows below their peaks to out[:, start:], in float32."""
    for r in range(x.shape[1]):
        peak = peaks[pair, axis, r]
        for i in range(np.uintp(x.shape[2])):
            out[r, start + i] = exp_32(np.float32(x[pair, r, i] - peak))


@_compiled
def differences(x, pair, axis, peaks, out, start):  # type: ignore[no-untyped-def]
    """Write one pair's rows less their peaks to out[:, start:], in float64."""
    for r in range(x.shape[1]):
        peak = np.float64(peaks[pair, axis, r])
        for i in range(np.uintp(x.shape[2])):
            out[r, start + i] = np.float64(x[pair, r, i]) - peak


@_compiled
def exponentiate(x, out):  # type: ignore[no-untyped-def]
    """Write the exponentials of numbers."""
    for i in range(len(out)):
        out[i] = exp(x[i])


@_compiled(fastmath={"reassoc"})
def total(x, r, start, stop):  # type: ignore[no-untyped-def]
    """Sum x[r, start:stop]."""
    result = x.dtype.type(0)
    for i in range(np.uintp(stop - start)):
        result += x[r, np.uintp(start) + i]
    return result


@_compiled
def mix(weight, factor, start, size, out, to):  # type: ignore[no-untyped-def]
    """Write Σ_r weight_r · factor[r, start : start + size] to out[to:], in the order of r.

    Up to four at a time, to keep the sum in registers.
    """
    R, a, b, n = len(weight), np.uintp(start), np.uintp(to), np.uintp(size)
    r = (R - 1) % 4 + 1
    w0, w1, w2, w3 = weight[0], weight[min(1, R - 1)], weight[min(2, R - 1)], weight[min(3, R - 1)]
    if r == 1:
        for x in range(n):
            out[b + x] = w0 * factor[0, a + x]
    elif r == 2:
        for x in range(n):
            out[b + x] = w0 * factor[0, a + x] + w1 * factor[1, a + x]
    elif r == 3:
        for x in range(n):
            out[b + x] = w0 * factor[0, a + x] + w1 * factor[1, a + x] + w2 * factor[2, a + x]
    else:
        for x in range(n):
            total = w0 * factor[0, a + x] + w1 * factor[1, a + x] + w2 * factor[2, a + x]
            out[b + x] = total + w3 * factor[3, a + x]
    while r < R:
        w0, w1, w2, w3 = weight[r], weight[r + 1], weight[r + 2], weight[r + 3]
        for x in range(n):
            total = out[b + x] + w0 * factor[r, a + x] + w1 * factor[r + 1, a + x]
            out[b + x] = total + w2 * factor[r + 2, a + x] + w3 * factor[r + 3, a + x]
        r += 4


@_compiled
def largest(x, start, stop):  # type: ignore[no-untyped-def]
    """Find the largest of x[start:stop]."""
    best = x[start]
    for i in range(np.uintp(stop - start)):
        best = larger(best, x[np.uintp(start) + i])
    return best


@_compiled
def place_of_largest(x, start, stop):  # type: ignore[no-untyped-def]
    """Find the first place of the largest of x[start:stop]."""
    best, at = largest(x, start, stop), start
    while x[at] != best:
        at += 1
    return at


@_compiled
def places_reaching(x, size, factor, bar, out):  # type: ignore[no-untyped-def]
    """Write the places of the first `size` numbers whose product with `factor` is `bar` or more; returns their number.

    Writes before it decides: a branch would be mispredicted.
    """
    n = np.uintp(0)
    for i in range(np.uintp(size)):
        out[n] = i
        n += np.uintp(x[i] * factor >= bar)
    return np.int64(n)


@_compiled
def count_reaching(x, size, bar):  # type: ignore[no-untyped-def]
    """Count the first `size` numbers that are `bar` or more."""
    count = np.int32(0)
    for i in range(size):
        count = np.int32(count + (x[i] >= bar))
    return count


@_compiled
def reached(x, size, count):  # type: ignore[no-untyped-def]
    """Find a bar that `count` of the first `size` float32 reach, none of them negative: the highest but for 1%.

    By bisection of its bits, which are in the order of the numbers.
    """
    if size < count:
        return np.float32(0)
    low, high = np.int32(0), np.int32(0x7F800000)
    while high - low > 1 << 16:
        middle = np.int32((np.int64(low) + np.int64(high)) // 2)
        if count_reaching(x, size, np.int32(middle).view(np.float32)) >= count:
            low = middle
        else:
            high = middle
    return np.int32(low).view(np.float32)
