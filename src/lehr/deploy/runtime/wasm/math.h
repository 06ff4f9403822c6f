/* The C library's, as far as the runtime uses it. */
#ifndef LEHR_MATH_H
#define LEHR_MATH_H

#define INFINITY __builtin_inff()

#endif
