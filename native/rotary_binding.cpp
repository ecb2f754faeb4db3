// The operator as Python calls it, with torch's tensors and none of torch's headers: a tensor is asked
// for its address, type, sizes and strides, and checked before anything is read or written.
#include <nanobind/nanobind.h>
#include <pthread.h>

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "rotary.h"

namespace nb = nanobind;

namespace whereness {
namespace {

// Python's objects, kept for ever: torch.float32 and so on in the order of Type, torch.empty_like,
// names of methods.
PyObject *types[4], *empty_like, *data_ptr, *dtype, *shape, *stride;

struct Tensor {
  char *data;
  Type type;
  int64_t sizes[4], strides[4];
};

void require(bool ok, const char *message) {
  if (!ok) throw nb::value_error(message);
}

nb::object given(PyObject *found) {
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

void read_four(const nb::object &tuple, int64_t *to) {
  require(PyTuple_Check(tuple.ptr()) && PyTuple_GET_SIZE(tuple.ptr()) == 4,
          "Tensors and tables must have four axes.");
  for (int i = 0; i < 4; ++i) to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
  if (PyErr_Occurred()) throw nb::python_error();  // a size that is not known yet
}

char *address(PyObject *tensor) {
  return (char *)PyLong_AsVoidPtr(given(PyObject_CallMethodNoArgs(tensor, data_ptr)).ptr());
}

Tensor read(PyObject *tensor) {
  Tensor told;
  const nb::object type = given(PyObject_GetAttr(tensor, dtype));
  const auto found = std::find(types, types + 4, type.ptr());
  require(found != types + 4, "Tensors must be float32, float64, bfloat16 or float16.");
  told.type = Type(found - types);
  told.data = address(tensor);
  read_four(given(PyObject_GetAttr(tensor, shape)), told.sizes);
  read_four(given(PyObject_CallMethodNoArgs(tensor, stride)), told.strides);
  return told;
}

// Refuses what would read or write other memory than the tensors' own.
void check(const Tensor &x, const Tensor &out, const Tensor &cos, const Tensor &sin,
           int64_t start) {
  require(out.type == x.type && std::equal(x.sizes, x.sizes + 4, out.sizes),
          "An output must have the shape and the type of its tensor.");
  require(std::equal(cos.sizes, cos.sizes + 4, sin.sizes), "cos and sin must have one shape.");
  const Type wide = x.type == FLOAT64 ? FLOAT64 : FLOAT32;
  require(cos.type == wide && sin.type == wide,
          "Tables must be float64 for float64 tensors, float32 for others.");
  const auto [batch, tokens, heads, pairs] = cos.sizes;
  require(tokens == x.sizes[2] && (batch == 1 || batch == x.sizes[0]),
          "Tables must have the tokens of their tensor, and its batch size or 1.");
  require(heads > 0 && x.sizes[1] % heads == 0,
          "A tensor must have a multiple of its tables' heads.");
  require(start >= 0 && start + 2 * pairs <= x.sizes[3],
          "The channels that turn must lie inside the tensor.");
  require(pairs < 2 || (cos.strides[3] == 1 && sin.strides[3] == 1),
          "Tables must be contiguous along their last axis.");
  const bool empty = std::count(x.sizes, x.sizes + 4, 0) > 0;
  for (int i = 0; i < 4; ++i)
    require(empty || x.sizes[i] < 2 || out.strides[i] != 0,
            "An output must have memory for every entry.");
}

Job job_of(const Tensor &x, const Tensor &out, const Tensor &cos, const Tensor &sin) {
  Job job{};
  job.x = x.data, job.out = out.data, job.cos = cos.data, job.sin = sin.data, job.type = x.type;
  std::copy_n(x.sizes, 4, job.sizes);
  std::copy_n(x.strides, 4, job.x_strides);
  std::copy_n(out.strides, 4, job.out_strides);
  std::copy_n(cos.sizes, 4, job.table_sizes);
  std::copy_n(cos.strides, 4, job.cos_strides);
  std::copy_n(sin.strides, 4, job.sin_strides);
  if (cos.sizes[0] == 1) job.cos_strides[0] = job.sin_strides[0] = 0;
  return job;
}

// A list or a tuple, of which each entry may be asked for.
struct Entries {
  nb::object held;
  Py_ssize_t count;

  explicit Entries(PyObject *from)
      : held(given(PySequence_Fast(from, "needed a list"))),
        count(PySequence_Fast_GET_SIZE(held.ptr())) {}
  PyObject *operator[](Py_ssize_t i) const { return PySequence_Fast_GET_ITEM(held.ptr(), i); }
};

bool is_contiguous(const Tensor &x) {
  int64_t inside = 1;
  for (int i = 3; i >= 0; inside *= x.sizes[i--])
    if (x.sizes[i] != 1 && x.strides[i] != inside) return false;
  return true;
}

// What empty_like made for `x`: of its sizes and type, in its order of memory.
Tensor read_new(PyObject *tensor, Tensor x) {
  x.data = address(tensor);
  if (!is_contiguous(x)) read_four(given(PyObject_CallMethodNoArgs(tensor, stride)), x.strides);
  return x;
}

// Turns xs into outs, or into new tensors where there are none, and gives them back. (None itself and
// names of arguments would take nanobind's slower way of a call.)
nb::object rotate(nb::handle given_xs, nb::handle given_tables, int64_t start, bool interleaved,
                  bool transposed, nb::handle given_outs) {
  const Entries xs(given_xs.ptr()), tables(given_tables.ptr());
  const bool anew = PySequence_Size(given_outs.ptr()) == 0;
  nb::object to = anew ? given(PyTuple_New(xs.count)) : nb::borrow(given_outs);
  for (Py_ssize_t i = 0; anew && i < xs.count; ++i)
    PyTuple_SET_ITEM(to.ptr(), i, given(PyObject_CallOneArg(empty_like, xs[i])).release().ptr());
  const Entries outs(to.ptr());
  require(xs.count == tables.count && xs.count == outs.count,
          "There must be tables and an output for every tensor.");
  std::vector<Job> jobs;
  jobs.reserve(xs.count);
  Tensor cos{}, sin{};
  PyObject *last = nullptr;
  for (Py_ssize_t i = 0; i < xs.count; ++i) {
    const Tensor x = read(xs[i]);
    const Tensor out = anew ? read_new(outs[i], x) : outs[i] == xs[i] ? x : read(outs[i]);
    if (tables[i] != last) {  // queries and keys mostly share theirs
      const Entries pair(last = tables[i]);
      require(pair.count == 2, "Tables must be pairs of cos and sin.");
      cos = read(pair[0]), sin = read(pair[1]);
    }
    check(x, out, cos, sin, start);
    Job job = job_of(x, out, cos, sin);
    job.start = start, job.interleaved = interleaved, job.transposed = transposed;
    jobs.push_back(job);
  }
  int64_t elements = 0;
  for (const Job &job : jobs) elements += job.elements();
  // A decoding step is done sooner than other threads are let in and out.
  PyThreadState *let_in = elements < LITTLE ? nullptr : PyEval_SaveThread();
  turn_all(jobs);
  if (let_in != nullptr) PyEval_RestoreThread(let_in);
  return to;
}

void know(nb::object torch) {
  const char *const names[] = {"float32", "float64", "bfloat16", "float16"};
  for (int i = 0; i < 4; ++i) types[i] = nb::getattr(torch, names[i]).release().ptr();
  empty_like = nb::getattr(torch, "empty_like").release().ptr();
}

}  // namespace

void bind_rotary(nanobind::module_ &m) {
  data_ptr = PyUnicode_InternFromString("data_ptr");
  dtype = PyUnicode_InternFromString("dtype");
  shape = PyUnicode_InternFromString("shape");
  stride = PyUnicode_InternFromString("stride");
  pthread_atfork(nullptr, nullptr, stay_alone);
  m.def("know", &know);
  m.def("rotate", &rotate);
}

}  // namespace whereness
