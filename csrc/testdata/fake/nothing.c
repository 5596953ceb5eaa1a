// A shared object that has none of the functions that anybody looks for.
int fake_nothing(void) { return 0; }
