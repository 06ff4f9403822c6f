/* The C library's, of which WebAssembly has these as instructions. */
#ifndef LEHR_STRING_H
#define LEHR_STRING_H

#define memcpy __builtin_memcpy
#define memmove __builtin_memmove
#define memset __builtin_memset

#endif
