"""Bytes that a compiled program moves, counted from its text."""

import pytest

from jaxinfer.jobs.hlo_text import Array, count_traffic, parse_program

TEXT = """HloModule jit_step, is_scheduled=true

%fused_scatter (p0: bf16[100,8], p1: s32[2,1], p2: bf16[2,8]) -> bf16[100,8] {
  %p0 = bf16[100,8]{1,0} parameter(0)
  %p1 = s32[2,1]{1,0} parameter(1)
  %p2 = bf16[2,8]{1,0} parameter(2)
  ROOT %scatter.1 = bf16[100,8]{1,0} scatter(%p0, %p1, %p2), update_window_dims={1}, to_apply=%add
}

%fused_gather (q0: f32[100,8], q1: s32[2,1]) -> f32[2,8] {
  %q0 = f32[100,8]{1,0} parameter(0)
  %view = f32[100,8]{1,0} bitcast(%q0)
  %q1 = s32[2,1]{1,0} parameter(1)
  ROOT %gather.1 = f32[2,8]{1,0} gather(%view, %q1), offset_dims={1}
}

%short (s0: f32[8]) -> f32[8] {
  ROOT %s0 = f32[8]{0} parameter(0)
}

%long (l0: f32[8]) -> f32[8] {
  %l0 = f32[8]{0} parameter(0)
  ROOT %copy.9 = f32[8]{0} copy(%l0)
}

ENTRY %main.1 (a: bf16[100,8], b: s32[2,1], c: bf16[2,8]) -> (bf16[100,8], f32[2,8]) {
  %a = bf16[100,8]{1,0} parameter(0), metadata={op_name="cache"}
  %b = s32[2,1]{1,0} parameter(1)
  %c = bf16[2,8]{1,0} parameter(2)
  %table = f32[100,8]{1,0} parameter(3)
  %flag = s32[] parameter(4)
  %vector = f32[8]{0} parameter(5)
  %fusion.1 = bf16[100,8]{1,0} fusion(%a, %b, %c), kind=kInput, calls=%fused_scatter, \
metadata={op_name="jit(step)/layer_1/attention/scatter"}
  %fusion.2 = f32[2,8]{1,0} fusion(%table, /*index=1*/%b), kind=kLoop, calls=%fused_gather
  %call.1 = (bf16[2,8]{1,0}, f32[4]{0}) custom-call(%c, %fusion.1), \
custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(step)/layer_1/attention/x (y)"}
  %gte = bf16[2,8]{1,0} get-tuple-element(%call.1), index=0
  %cond = f32[8]{0} conditional(%flag, %vector, %vector), branch_computations={%long, %short}
  %gemm = (s4[3,4]{1,0}, s8[1024]{0}) custom-call(%c), custom_call_target="__cublas$gemm"
  ROOT %tuple = (bf16[100,8]{1,0}, f32[2,8]{1,0}) tuple(%fusion.1, %fusion.2)
}
"""
PAGES = Array(dtype="bf16", dims=(100, 8))


def test_parts_that_are_read_or_written_count_and_not_the_whole() -> None:
    found = count_traffic(parse_program(TEXT), lambda array: array == PAGES)
    scatter = (2 * 4 + 32) + 32  # indices and rows read, rows written
    gather = 64 + 2 * 4 + 64
    call = 32 + (32 + 16)  # the pages aside
    gemm = 32 + 6  # 12 elements of 4 bits; the workspace is not moved
    assert found.num_bytes == scatter + gather + call + gemm
    assert found.page_reads == ((1, PAGES),)


def test_a_condition_counts_by_its_cheapest_branch() -> None:
    with_pages = count_traffic(parse_program(TEXT), lambda array: False).num_bytes
    twice = TEXT.replace("{%long, %short}", "{%long, %long}")
    assert count_traffic(parse_program(twice), lambda array: False).num_bytes == with_pages + 64


def test_kernels_of_a_layer() -> None:
    program = parse_program(TEXT)
    assert program.entry == "main.1"
    assert program.kernels_of_layer(1) == 2
    assert program.kernels_of_layer(0) == 0


@pytest.mark.parametrize(
    ("dtype", "num_bytes"), [("pred", 12), ("s4", 6), ("f8e4m3fn", 12), ("bf16", 24), ("f64", 96)]
)
def test_bytes_of_arrays(dtype: str, num_bytes: int) -> None:
    assert Array(dtype=dtype, dims=(3, 4)).num_bytes == num_bytes


def test_what_a_kernel_overwrites_in_place_is_not_moved() -> None:
    text = """ENTRY %main.1 (a: bf16[100,8], b: bf16[2,8]) -> bf16[100,8] {
  %a = bf16[100,8]{1,0} parameter(0)
  %b = bf16[2,8]{1,0} parameter(1)
  %call = (f32[4]{0}, bf16[100,8]{1,0}) custom-call(%b, %a), custom_call_target="mosaic_gpu_v2", \
output_to_operand_aliasing={{1}: (1, {})}, metadata={op_name="jit(step)/layer_1/write"}
  ROOT %gte = bf16[100,8]{1,0} get-tuple-element(%call), index=1
}
"""
    found = count_traffic(parse_program(text), lambda array: array == PAGES)
    assert found.num_bytes == 16 + 32 and found.page_reads == ()
