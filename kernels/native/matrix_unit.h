// Attention by the matrix unit (AMX), for processors that have one.

#pragma once

#include "paged_attention.h"

extern "C" {

// Whether this process may use it: the kernel is asked at the first call.
int keepwarm_has_matrix_unit();
void keepwarm_attend_matrix(const AttendArgs* args);
void keepwarm_attend_matrix_int8(const AttendArgs* args);
}
