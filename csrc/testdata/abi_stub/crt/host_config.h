// Stand-in for a header that the CUDA runtime package leaves to the compiler package. Nothing of it is needed in C.
