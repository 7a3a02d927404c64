/* The interpreter behind the library: found or started by the first call of the process, never ended before it.
 *
 * Nothing here knows an interface of CANN. Python's functions are looked up by name, so that building the library
 * needs neither Python's headers nor its library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

#include "environment.h" /* generated: where Python and lngrad are */
#include "shim.h"

typedef struct _object PyObject;

static struct {
    int (*is_initialized)(void);
    void (*set_program_name)(const wchar_t *);
    wchar_t *(*decode_locale)(const char *, size_t *);
    void (*initialize)(int);
    const char *(*version)(void);
    int (*ensure)(void);
    void (*release)(int);
    void *(*this_thread)(void);
    void *(*save_thread)(void);
    void (*restore_thread)(void *);
    void (*clear_thread)(void *);
    void (*delete_thread)(void);
    PyObject *(*dict_new)(void);
    PyObject *(*run_string)(const char *, int, PyObject *, PyObject *);
    void (*err_clear)(void);
    void (*dec_ref)(PyObject *);
} python;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;
static void (*serve)(lngrad_frame *); /* the callback that attach.py puts here; null: there is no interpreter */
static int forked;
static char failure_text[2048];
static _Thread_local int has_thread_state;
static _Thread_local const char *unread_text; /* of this thread's last failure without an interpreter */

static const char FORKED[] =
    "lngrad: this process was forked from one that had called acl functions; its interpreter, streams and device "
    "memory stayed there. Fork first, then call aclInit in each process";

static const char GONE[] =
    "lngrad: the Python environment that wrote this toolkit is gone: %s. Write the folder again, with `lngrad sdk DIR`";

static const char OTHER_PYTHON[] =
    "lngrad: this program contains Python %.20s, and the toolkit is of Python " LNGRAD_PYTHON_VERSION
    ". Write the folder with the program's Python";

static const char NO_LIBRARY[] =
    "lngrad: %s has no shared library (libpython" LNGRAD_PYTHON_VERSION "), by which programs load Python. "
    "Install it (Debian, Ubuntu: apt install libpython" LNGRAD_PYTHON_VERSION ") and write the folder again; or write it with "
    "another Python, as uv's or conda's; or run the source with `lngrad sdk DIR --run`, which needs none";

static void fail(const char *format, const char *what)
{
    snprintf(failure_text, sizeof failure_text, format, what);
    fprintf(stderr, "%s\n", failure_text);
}

/* 0 if all of Python's functions are there. */
static int look_up(void *library)
{
    const struct {
        void *place;
        const char *name;
    } names[] = {
        {&python.is_initialized, "Py_IsInitialized"},
        {&python.set_program_name, "Py_SetProgramName"},
        {&python.decode_locale, "Py_DecodeLocale"},
        {&python.initialize, "Py_InitializeEx"},
        {&python.version, "Py_GetVersion"},
        {&python.ensure, "PyGILState_Ensure"},
        {&python.release, "PyGILState_Release"},
        {&python.this_thread, "PyGILState_GetThisThreadState"},
        {&python.save_thread, "PyEval_SaveThread"},
        {&python.restore_thread, "PyEval_RestoreThread"},
        {&python.clear_thread, "PyThreadState_Clear"},
        {&python.delete_thread, "PyThreadState_DeleteCurrent"},
        {&python.dict_new, "PyDict_New"},
        {&python.run_string, "PyRun_String"},
        {&python.err_clear, "PyErr_Clear"},
        {&python.dec_ref, "Py_DecRef"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i].name);
        if (found == NULL) return -1;
        memcpy(names[i].place, &found, sizeof found);
    }
    return 0;
}

/* Run attach() in Python, with lngrad's folder at this place of Python's search path. The caller has Python's lock. */
static void attach(int place)
{
    static char code[8192];
    enum { FILE_INPUT = 257 }; /* Py_file_input */
    snprintf(code, sizeof code, LNGRAD_ATTACH, place, (long long)LNGRAD_WORD(&serve),
             (int)sizeof failure_text, (long long)LNGRAD_WORD(failure_text));
    PyObject *names = python.dict_new();
    PyObject *result = python.run_string(code, FILE_INPUT, names, names);
    if (result == NULL) python.err_clear();
    else python.dec_ref(result);
    python.dec_ref(names);
    if (serve == NULL) {
        if (failure_text[0] == '\0') snprintf(failure_text, sizeof failure_text, "lngrad: Python could not start");
        fprintf(stderr, "%s\n", failure_text);
    }
}

static void in_child(void) { forked = 1; }

/* What waits in streams is run before the process ends. Python itself is not ended: threads of the program may still
 * be in calls, and destructors of static objects come later and may call too. */
static void at_exit(void)
{
    if (serve == NULL || forked || !python.is_initialized()) return;
    lngrad_frame frame = {.function = -1};
    lngrad_call(&frame, 0);
}

static void leave_thread(void *state)
{
    if (forked || !python.is_initialized()) return;
    python.restore_thread(state);
    python.clear_thread(state); /* not PyGILState_Release: where Python was there first, its key of this thread is gone */
    python.delete_thread();
}

static void start(void)
{
    pthread_key_create(&thread_key, leave_thread);
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);

    if (access(LNGRAD_PYTHON, X_OK) != 0 || access(LNGRAD_PACKAGE "/lngrad_ascend/__init__.py", R_OK) != 0) {
        fail(GONE, access(LNGRAD_PYTHON, X_OK) != 0 ? LNGRAD_PYTHON : LNGRAD_PACKAGE "/lngrad_ascend");
        return;
    }
    if (look_up(RTLD_DEFAULT) == 0 && python.is_initialized()) { /* the program is Python, or has it inside */
        if (strncmp(python.version(), LNGRAD_PYTHON_VERSION ".", strlen(LNGRAD_PYTHON_VERSION ".")) != 0) {
            fail(OTHER_PYTHON, python.version());
            return;
        }
        const int state = python.ensure();
        attach(1 << 20); /* last: what the program imports stays the same */
        python.release(state);
        return;
    }
    void *library = *LNGRAD_LIBPYTHON ? dlopen(LNGRAD_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL) : NULL; /* NumPy needs it global */
    if (library == NULL || look_up(library) != 0) { /* Python is linked statically, or its library is gone */
        fail(NO_LIBRARY, LNGRAD_PYTHON);
        return;
    }
    python.set_program_name(python.decode_locale(LNGRAD_PYTHON, NULL)); /* finds the virtual environment */
    struct sigaction interrupt; /* Python's own would wait for Python code, which a kernel's endless loop never runs */
    sigaction(SIGINT, NULL, &interrupt);
    python.initialize(0); /* without signal handlers, but for that one */
    attach(0);
    sigaction(SIGINT, &interrupt, NULL);
    python.save_thread();
    has_thread_state = 1;
}

/* Give a thread that Python does not know a state that stays until it ends. What Python keeps per thread, such as the
 * text of the last error, would be gone after each call otherwise. */
static void enter_thread(void)
{
    has_thread_state = 1;
    if (python.this_thread() != NULL) return;
    python.ensure();
    pthread_setspecific(thread_key, python.save_thread());
}

/* What a call gets that nobody can answer. */
static void refuse(lngrad_frame *frame, int64_t failure, const char *text)
{
    if (frame->text == NULL) {
        unread_text = text;
        frame->results[0] = failure;
    } else if (unread_text != NULL) {
        snprintf(frame->text, LNGRAD_TEXT_BYTES, "%s", unread_text);
        unread_text = NULL;
        frame->results[0] = 1;
    }
}

void lngrad_call(lngrad_frame *frame, int64_t failure)
{
    pthread_once(&once, start);
    frame->results[0] = failure;
    if (serve == NULL || forked) {
        refuse(frame, failure, forked ? FORKED : failure_text);
        return;
    }
    if (!has_thread_state) enter_thread();
    serve(frame);
}

int64_t *lngrad_new_array(const int64_t *values, int64_t count)
{
    static void *(*new_array)(size_t);
    if (new_array == NULL) {
        void *found = dlsym(RTLD_DEFAULT, "_Znam"); /* operator new[], if the program has C++'s library */
        if (found == NULL) new_array = malloc;
        else memcpy(&new_array, &found, sizeof found);
    }
    const size_t size = (size_t)count * sizeof *values;
    int64_t *copy = new_array(size > 0 ? size : sizeof *values);
    if (copy != NULL) memcpy(copy, values, size);
    return copy;
}
