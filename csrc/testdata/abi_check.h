// What abi_nccl.c and abi_cudart.c share: each macro compares one thing of abi.h with the vendor's.
//
// Prototypes are not compared here. These files declare every function of the X-macro lists as our_NAME with our types, gcc's -aux-info
// lists those beside the vendor's declarations, and abi_test.go compares the two lists parameter by parameter. A parameter may differ only by
// a pair that HANDLE, INTEGER or STRUCT below has shown to be passed alike.
#include <stddef.h>
#include "abi.h"

#define CP_CAT2(a, b) a##b
#define CP_CAT(a, b) CP_CAT2(a, b)

// Makes the pair visible to -aux-info.
#define CP_PAIR(ours, theirs) extern void CP_CAT(abi_pair_, __COUNTER__)(ours, theirs)

// __builtin_classify_type tells integers and enums (1) from pointers (5); the operand is not evaluated.
#define HANDLE(ours, theirs) \
  _Static_assert(sizeof(ours) == sizeof(theirs), #theirs ": size differs from " #ours); \
  _Static_assert(__builtin_classify_type(*(ours *)0) == 5, #ours ": not a pointer"); \
  _Static_assert(__builtin_classify_type(*(theirs *)0) == 5, #theirs ": not a pointer"); \
  CP_PAIR(ours, theirs)

#define INTEGER(ours, theirs) \
  _Static_assert(sizeof(ours) == sizeof(theirs), #theirs ": size differs from " #ours); \
  _Static_assert(__builtin_classify_type(*(ours *)0) == 1, #ours ": not an integer"); \
  _Static_assert(__builtin_classify_type(*(theirs *)0) == 1, #theirs ": not an integer"); \
  CP_PAIR(ours, theirs)

#define STRUCT(ours, theirs) \
  _Static_assert(sizeof(ours) == sizeof(theirs), #theirs ": size differs from " #ours); \
  _Static_assert(_Alignof(ours) == _Alignof(theirs), #theirs ": alignment differs from " #ours); \
  CP_PAIR(ours, theirs)

#define VALUE(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " differs from " #theirs)

#define OUR_INT(name, params, args) extern int our_##name params;
#define OUR_TEXT(name, params, args) extern const char *our_##name params;
