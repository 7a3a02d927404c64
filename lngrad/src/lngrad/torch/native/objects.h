// Python's objects and its lock, by functions that every Python from 3.10 on has alike: a library of them fits all of these.
// pybind11 would do the same with structures of the one Python that it is compiled for, so nothing here is made of it.
#pragma once

#include <Python.h>

#include <utility>

namespace lngrad::py {

struct handle {
  PyObject* pointer = nullptr;
  PyObject* ptr() const { return pointer; }
};

// A reference that is counted; none where it was moved away.
class object {
 public:
  object() = default;
  explicit object(PyObject* counted) : pointer_(counted) {}
  object(const object& other) : pointer_(other.pointer_) { Py_XINCREF(pointer_); }
  object(object&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  object& operator=(object other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~object() { Py_XDECREF(pointer_); }
  PyObject* ptr() const { return pointer_; }
  handle release() { return {std::exchange(pointer_, nullptr)}; }
  bool is_none() const { return pointer_ == Py_None; }

 private:
  PyObject* pointer_ = nullptr;
};

// Of a reference that is ours, and of one that is another's.
inline object steal(PyObject* pointer) { return object(pointer); }
inline object borrow(PyObject* pointer) {
  Py_XINCREF(pointer);
  return object(pointer);
}

inline object none() { return borrow(Py_None); }

template <class... Objects>
object make_tuple(const Objects&... objects) {
  return steal(PyTuple_Pack(sizeof...(objects), objects.ptr()...));
}

// What a function returned: a tuple, or a list.
struct tuple {
  explicit tuple(const object& results) : held(steal(PySequence_Tuple(results.ptr()))) {}
  handle operator[](Py_ssize_t at) const { return {PyTuple_GetItem(held.ptr(), at)}; }
  object held;
};

class gil_scoped_acquire {
 public:
  gil_scoped_acquire() = default;
  gil_scoped_acquire(const gil_scoped_acquire&) = delete;
  ~gil_scoped_acquire() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_ = PyGILState_Ensure();
};

class gil_scoped_release {
 public:
  gil_scoped_release() = default;
  gil_scoped_release(const gil_scoped_release&) = delete;
  ~gil_scoped_release() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_ = PyEval_SaveThread();
};

}  // namespace lngrad::py
