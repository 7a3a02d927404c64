// How a library that Python has loaded asks the simulator: by a call of Python's own. What is raised there at any
// instruction, such as by a signal's handler, unwinds the kernel, and ctypes raises it where Python has called the library.
#ifndef LNGRAD_PYTHON_H
#define LNGRAD_PYTHON_H

#include "lngrad/call.h"

struct _object;
extern "C" {
_object* PyObject_CallFunction(_object*, const char*, ...);
_object* PyErr_Occurred();
int PyObject_IsTrue(_object*);
void Py_DecRef(_object*);
}

namespace lngrad {

inline _object* python = nullptr; // the function that answers

inline int ask_python(Call* call)
{
    if (PyErr_Occurred() != nullptr) return 1; // the kernel has caught what unwinds it
    _object* const fault = PyObject_CallFunction(python, "n", call);
    if (fault == nullptr) return 1;
    const int is_fault = PyObject_IsTrue(fault);
    Py_DecRef(fault);
    return is_fault;
}

} // namespace lngrad

#endif
