/* The second form of the library: Python in a process of its own, where none can be loaded into this one.
 *
 * A thread of the program has a connection, and the server a thread for it, so that what is kept per thread is the same
 * as in one process. The server asks for the program's memory while it answers a call; the words are those of
 * server.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "environment.h"
#include "shim.h"

extern char **environ;

enum { DONE, READ, WRITE, CHECK, ALLOCATE, FREE };              /* what the server asks for */
enum { POPULATE_READ = 22, POPULATE_WRITE = 23, LOW_FD = 3 };   /* of madvise: see pointers.py */

static int control = -1;
static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t connection_key;
static _Thread_local int connection = -1;

static int send_all(int fd, const void *data, size_t size)
{
    for (const char *at = data; size > 0;) {
        const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        at += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int receive_all(int fd, void *data, size_t size)
{
    for (char *at = data; size > 0;) {
        const ssize_t got = recv(fd, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

/* Whether the program itself could read, or write, these bytes. */
static int accessible(const void *address, size_t size, int how)
{
    const size_t into = (size_t)((uintptr_t)address % 4096);
    if (size == 0) return 1;
    return madvise((char *)(uintptr_t)address - into, size + into, how) == 0;
}

static void leave(void *fd) { close((int)(intptr_t)fd - 1); }

/* Give this thread a connection: one end of a new pair of sockets goes to the server. */
static int connect_thread(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
    pthread_mutex_lock(&control_lock);
    const ssize_t sent = sendmsg(control, &message, MSG_NOSIGNAL);
    pthread_mutex_unlock(&control_lock);
    close(pair[1]);
    if (sent != 1) {
        close(pair[0]);
        return -1;
    }
    connection = pair[0];
    pthread_setspecific(connection_key, (void *)(intptr_t)(connection + 1));
    return 0;
}

int lngrad_server_start(char *text, size_t text_size)
{
    int pair[2];
    pid_t child;
    char number[16];
    char *const arguments[] = {LNGRAD_PYTHON, "-I", "-c", LNGRAD_SERVE, number, NULL};
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    snprintf(number, sizeof number, "%d", LOW_FD);
    posix_spawn_file_actions_init(&actions);
    if (pair[1] == LOW_FD) pair[1] = dup(pair[1]); /* a descriptor onto itself would stay closed on exec */
    posix_spawn_file_actions_adddup2(&actions, pair[1], LOW_FD);
    const int failed = posix_spawn(&child, LNGRAD_PYTHON, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    control = pair[0];
    pthread_key_create(&connection_key, leave);

    int64_t size = -1; /* of the reason why it could not start; 0: it is ready */
    if (failed != 0 || receive_all(control, &size, sizeof size) != 0) {
        snprintf(text, text_size, "lngrad: can't start Python in a process of its own: %s", LNGRAD_PYTHON);
        return -1;
    }
    if (size == 0) return 0;
    if ((size_t)size >= text_size) size = (int64_t)text_size - 1;
    if (receive_all(control, text, (size_t)size) != 0) size = 0;
    text[size] = '\0';
    return -1;
}

/* Do what the server asks for while it answers; 1: it has answered, -1: it is gone. */
static int oblige(const int64_t *request, lngrad_frame *frame)
{
    void *address = LNGRAD_POINTER(request[1]);
    const size_t size = (size_t)request[2];
    int64_t reply = 1;
    switch (request[0]) {
    case READ:
        reply = accessible(address, size, POPULATE_READ);
        if (send_all(connection, &reply, sizeof reply) != 0) return -1;
        return reply ? send_all(connection, address, size) : 0;
    case WRITE: return receive_all(connection, address, size);
    case CHECK:
        reply = accessible(address, size, POPULATE_WRITE);
        return send_all(connection, &reply, sizeof reply);
    case ALLOCATE:
        if (posix_memalign(&address, 64, size) != 0) address = NULL;
        reply = LNGRAD_WORD(address);
        return send_all(connection, &reply, sizeof reply);
    case FREE: free(address); return 0;
    case DONE: break;
    default: return -1;
    }
    if (receive_all(connection, frame->results, sizeof frame->results) != 0) return -1;
    if (receive_all(connection, frame->list, sizeof frame->list) != 0) return -1;
    if (size > 0) {
        if (frame->text == NULL || size >= LNGRAD_TEXT_BYTES) return -1;
        if (receive_all(connection, frame->text, size) != 0) return -1;
        frame->text[size] = '\0';
    }
    return 1;
}

int lngrad_server_call(lngrad_frame *frame)
{
    if (connection < 0 && connect_thread() != 0) return -1;
    if (send_all(connection, frame, offsetof(lngrad_frame, results)) != 0) return -1;
    for (;;) {
        int64_t request[3];
        if (receive_all(connection, request, sizeof request) != 0) return -1;
        const int state = oblige(request, frame);
        if (state < 0) return -1;
        if (state > 0) return 0;
    }
}
