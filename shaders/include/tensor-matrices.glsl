// Matrices of a whole workgroup that come from and go to memory as parts of two-dimensional tensors: what
// SPV_NV_tensor_addressing and SPV_NV_cooperative_matrix2 have and this compiler has no words for, as SPIR-V instructions.
// A Layout tells of a tensor: its rows, its columns, and how far apart rows are, in elements. `within` is the part of it
// that a matrix is. CLAMPED: what lies past the tensor's end is loaded as zero and not stored.
// Sources: SPV_NV_tensor_addressing, SPV_NV_cooperative_matrix2, GL_EXT_spirv_intrinsics.

#extension GL_EXT_spirv_intrinsics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

const uint TENSOR_AXES = 2u, UNCLAMPED = 0u, ZEROS = 1u;  // the clamp modes Undefined and Constant
const uint FIRST_AXIS = 0u, SECOND_AXIS = 1u;
const bool NO_SIZES = false;

#define ADDRESSING extensions = ["SPV_NV_tensor_addressing"], capabilities = [5439]
#define TENSOR_MATRICES \
    extensions = ["SPV_NV_tensor_addressing", "SPV_NV_cooperative_matrix2"], capabilities = [5433, 5439]

#define Layout spirv_type(ADDRESSING, id = 5370, TENSOR_AXES, UNCLAMPED)
#define ClampedLayout spirv_type(ADDRESSING, id = 5370, TENSOR_AXES, ZEROS)
// Rows as columns.
#define Transposed spirv_type(ADDRESSING, id = 5371, TENSOR_AXES, NO_SIZES, SECOND_AXIS, FIRST_AXIS)

spirv_instruction(ADDRESSING, id = 5372) Layout new_layout();
spirv_instruction(ADDRESSING, id = 5372) ClampedLayout new_clamped_layout();
spirv_instruction(ADDRESSING, id = 5377) Transposed new_transposed();
// Functions of different types have different names, as the compiler holds such types for one.
spirv_instruction(ADDRESSING, id = 5373) Layout with_sizes(Layout tensor, uint rows, uint columns);
spirv_instruction(ADDRESSING, id = 5374) Layout with_steps(Layout tensor, uint row, uint column);
spirv_instruction(ADDRESSING, id = 5375) Layout within(Layout tensor, uint row, uint rows, uint column, uint columns);
spirv_instruction(ADDRESSING, id = 5373) ClampedLayout clamped_sizes(ClampedLayout tensor, uint rows, uint columns);
spirv_instruction(ADDRESSING, id = 5374) ClampedLayout clamped_steps(ClampedLayout tensor, uint row, uint column);
spirv_instruction(ADDRESSING, id = 5375) ClampedLayout clamped_within(
    ClampedLayout tensor, uint row, uint rows, uint column, uint columns);

// `name` loads a matrix, `name`_transposed one whose rows are the tensor's columns. Its last arguments are the operands that say
// how memory is accessed, none, and that there is no view or one.
#define TENSOR_LOADS(name, MATRIX, POINTED, LAYOUT) \
    spirv_instruction(TENSOR_MATRICES, id = 5367) MATRIX name( \
        spirv_by_reference POINTED from, MATRIX shape, LAYOUT part, spirv_literal uint memory, spirv_literal uint addressing); \
    spirv_instruction(TENSOR_MATRICES, id = 5367) MATRIX name##_transposed( \
        spirv_by_reference POINTED from, MATRIX shape, LAYOUT part, spirv_literal uint memory, spirv_literal uint addressing, \
        Transposed view);
#define TENSOR_STORES(name, MATRIX, POINTED, LAYOUT) \
    spirv_instruction(TENSOR_MATRICES, id = 5368) void name( \
        spirv_by_reference POINTED to, MATRIX matrix, LAYOUT part, spirv_literal uint memory, spirv_literal uint addressing);
