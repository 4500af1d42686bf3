"""GPU instructions that Numba has no name for, as inline PTX (PTX ISA 8.x).

Addresses of shared memory are 32 bits in the shared window; global memory is reached as (array, index), and the
arrays are one-dimensional and contiguous. Several registers are a tuple. Where the order of memory accesses
matters, the instruction is declared to touch memory, so that the compiler moves none across it.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

_I32, _I64, _F32, _VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()
_U32 = types.uint32
_MEMORY = "~{memory}"


def _emit(
    builder: Any,
    result: Any,
    operands: list[tuple[Any, Any]],
    text: str,
    constraints: str,
    *,
    pure: bool = False,
) -> Any:
    """One inline instruction. operands: (LLVM type, value)."""
    kind = ir.FunctionType(result, [llvm for llvm, _ in operands])
    code = ir.InlineAsm(kind, text, constraints, side_effect=not pure)
    return builder.call(code, [value for _, value in operands])


def _registers(builder: Any, struct: Any, count: int) -> Any:
    """The members of an instruction's result as Numba's tuple."""
    return cgutils.pack_array(builder, [builder.extract_value(struct, place) for place in range(count)])


def _members(builder: Any, value: Any, count: int) -> list[Any]:
    return [builder.extract_value(value, place) for place in range(count)]


def _element(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """The address of array[index], without Numba's wraparound of negative indices."""
    data = context.make_array(array_type)(context, builder, value=array).data
    if index_type.bitwidth < 64:
        index = (builder.sext if index_type.signed else builder.zext)(index, _I64)
    return builder.gep(data, [index])


def _global_address(context: Any, builder: Any, sig: Any, args: Any, at: int) -> Any:
    """args[at] is an array, args[at + 1] an index: the 64-bit global address of the element."""
    pointer = _element(context, builder, sig.args[at], args[at], sig.args[at + 1], args[at + 1])
    in_global = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, 1))
    return builder.ptrtoint(in_global, _I64)


@intrinsic
def shared_address(typingctx: Any, array: Any) -> Any:
    """The 32-bit address of a shared array's first element."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, value=args[0]).data
        return builder.ptrtoint(builder.addrspacecast(data, ir.PointerType(data.type.pointee, 3)), _I32)

    return _U32(array), generate


@intrinsic
def copy_async(typingctx: Any, shared: Any, array: Any, index: Any, size: Any) -> Any:
    """16 bytes from array[index] to the shared address, of which only the first `size` are read and the rest
    is zeros. Both addresses are multiples of 16."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = _global_address(context, builder, sig, args, 1)
        operands = [(_I32, args[0]), (_I64, source), (_I32, args[3])]
        _emit(builder, _VOID, operands, "cp.async.cg.shared.global [$0], [$1], 16, $2;", f"r,l,r,{_MEMORY}")
        return context.get_dummy_value()

    return types.void(_U32, array, index, types.int32), generate


def _plain(text: str) -> Callable[..., Any]:
    """An instruction without operands, which orders memory."""

    @intrinsic
    def instruction(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _emit(builder, _VOID, [], text, _MEMORY)
            return context.get_dummy_value()

        return types.void(), generate

    return instruction


copy_async_commit = _plain("cp.async.commit_group;")


def make_copy_async_wait(pending: int) -> Callable[..., Any]:
    """Waits until at most `pending` of the groups committed last are not there yet."""
    return _plain(f"cp.async.wait_group {pending};")


def _ldmatrix(suffix: str) -> Callable[..., Any]:
    @intrinsic
    def instruction(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            text = f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
            result = ir.LiteralStructType([_I32] * 4)
            found = _emit(builder, result, [(_I32, args[0])], text, f"=r,=r,=r,=r,r,{_MEMORY}")
            return _registers(builder, found, 4)

        return types.UniTuple(_U32, 4)(_U32), generate

    return instruction


# Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l // 8.
ldmatrix = _ldmatrix("")
ldmatrix_transposed = _ldmatrix(".trans")


@intrinsic
def mma_bf16(typingctx: Any, a: Any, b0: Any, b1: Any, c: Any) -> Any:
    """c + a b of one warp: a 16 x 16, b 16 x 8 in bfloat16 pairs, c 16 x 8 in float32, in the fragment layout
    of mma.m16n8k16."""
    a_type, c_type = types.UniTuple(_U32, 4), types.UniTuple(types.float32, 4)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        text = (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9},"
            " {$10,$11,$12,$13};"
        )
        operands = [(_I32, member) for member in _members(builder, args[0], 4)]
        operands += [(_I32, args[1]), (_I32, args[2])]
        operands += [(_F32, member) for member in _members(builder, args[3], 4)]
        result = ir.LiteralStructType([_F32] * 4)
        found = _emit(builder, result, operands, text, "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3", pure=True)
        return _registers(builder, found, 4)

    return c_type(a_type, _U32, _U32, c_type), generate


@intrinsic
def pack_bf16(typingctx: Any, low: Any, high: Any) -> Any:
    """Two float32 rounded to the nearest bfloat16, as one register: `low` in its low half."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [(_F32, args[1]), (_F32, args[0])]
        return _emit(builder, _I32, operands, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", pure=True)

    return _U32(types.float32, types.float32), generate


@intrinsic
def bits_to_float(typingctx: Any, bits: Any) -> Any:
    """The float32 with these bits."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(_U32), generate


@intrinsic
def load_128(typingctx: Any, array: Any, index: Any) -> Any:
    """Four registers from array[index], whose address is a multiple of 16; nothing writes there meanwhile."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = _global_address(context, builder, sig, args, 0)
        result = ir.LiteralStructType([_I32] * 4)
        text = "ld.global.v4.u32 {$0,$1,$2,$3}, [$4];"
        found = _emit(builder, result, [(_I64, source)], text, f"=r,=r,=r,=r,l,{_MEMORY}")
        return _registers(builder, found, 4)

    return types.UniTuple(_U32, 4)(array, index), generate


@intrinsic
def store_128(typingctx: Any, array: Any, index: Any, registers: Any) -> Any:
    """Four registers to array[index], whose address is a multiple of 16."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target = _global_address(context, builder, sig, args, 0)
        operands = [(_I64, target), *((_I32, member) for member in _members(builder, args[2], 4))]
        _emit(builder, _VOID, operands, "st.global.v4.u32 [$0], {$1,$2,$3,$4};", f"l,r,r,r,r,{_MEMORY}")
        return context.get_dummy_value()

    return types.void(array, index, types.UniTuple(_U32, 4)), generate


@intrinsic
def store_32(typingctx: Any, array: Any, index: Any, register: Any) -> Any:
    """One register to array[index], whose address is a multiple of 4."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target = _global_address(context, builder, sig, args, 0)
        _emit(builder, _VOID, [(_I64, target), (_I32, args[2])], "st.global.u32 [$0], $1;", f"l,r,{_MEMORY}")
        return context.get_dummy_value()

    return types.void(array, index, _U32), generate


@intrinsic
def store_shared_32(typingctx: Any, address: Any, register: Any) -> Any:
    """One register to a shared address."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [(_I32, args[0]), (_I32, args[1])]
        _emit(builder, _VOID, operands, "st.shared.u32 [$0], $1;", f"r,r,{_MEMORY}")
        return context.get_dummy_value()

    return types.void(_U32, _U32), generate


@intrinsic
def store_shared_64(typingctx: Any, address: Any, first: Any, second: Any) -> Any:
    """Two float32 to a shared address that is a multiple of 8."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [(_I32, args[0]), (_F32, args[1]), (_F32, args[2])]
        _emit(builder, _VOID, operands, "st.shared.v2.f32 [$0], {$1, $2};", f"r,f,f,{_MEMORY}")
        return context.get_dummy_value()

    return types.void(_U32, types.float32, types.float32), generate


@cuda.jit(device=True)
def exp(x):
    """e^x in float32, infinity where it is too large."""
    return math.exp(x)


@cuda.jit(device=True)
def log(x):
    """The natural logarithm in float32; -infinity for 0."""
    return math.log(x)


@intrinsic
def exp2(typingctx: Any, x: Any) -> Any:
    """2^x in float32 (ex2.approx: within 2 units in the last place), 0 for minus infinity."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _emit(builder, _F32, [(_F32, args[0])], "ex2.approx.ftz.f32 $0, $1;", "=f,f", pure=True)

    return types.float32(types.float32), generate
