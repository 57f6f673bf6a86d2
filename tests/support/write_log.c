/* Preloaded into a process: what it writes, truncates, unlinks and syncs below $WRITE_LOG_FOLDER goes, in
 * order, into the file $WRITE_LOG. Each record: kind, bytes of the path, offset, bytes of the data,
 * path, data. One operation at a time, so that the order of the log is the order on the disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static ssize_t (*real_write)(int, const void *, size_t);

static int path_of(int fd, char *path) {
    char link[64];
    const char *folder = getenv("WRITE_LOG_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    if (n < 0 || !folder) return 0;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static void note(char kind, const char *path, int64_t offset, const void *data, uint32_t size) {
    if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
    if (out < 0) out = open(getenv("WRITE_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    uint32_t length = strlen(path);
    char head[17];
    head[0] = kind;
    memcpy(head + 1, &length, 4);
    memcpy(head + 5, &offset, 8);
    memcpy(head + 13, &size, 4);
    if (real_write(out, head, 17) != 17 || real_write(out, path, length) != (ssize_t)length ||
        (size && real_write(out, data, size) != (ssize_t)size))
        abort();
}

#define REAL(name) \
    static typeof(name) *real; \
    if (!real) real = (typeof(name) *)dlsym(RTLD_NEXT, #name)

static ssize_t logged(ssize_t done, int fd, const void *data, int64_t offset) {
    char path[4096];
    if (done > 0 && path_of(fd, path)) note('w', path, offset, data, (uint32_t)done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    pthread_mutex_lock(&one);
    ssize_t done = logged(real(fd, data, size, offset), fd, data, offset);
    pthread_mutex_unlock(&one);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return pwrite64(fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    pthread_mutex_lock(&one);
    int64_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = logged(real(fd, data, size), fd, data, offset);
    pthread_mutex_unlock(&one);
    return done;
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    char path[4096];
    pthread_mutex_lock(&one);
    int done = real(fd, size);
    if (!done && path_of(fd, path)) note('t', path, size, "", 0);
    pthread_mutex_unlock(&one);
    return done;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int unlink(const char *name) {
    REAL(unlink);
    const char *folder = getenv("WRITE_LOG_FOLDER");
    pthread_mutex_lock(&one);
    int done = real(name);
    if (!done && folder && !strncmp(name, folder, strlen(folder))) note('u', name, 0, "", 0);
    pthread_mutex_unlock(&one);
    return done;
}

static int synced(int done, int fd) {
    char path[4096];
    if (!done && path_of(fd, path)) note('s', path, 0, "", 0);
    return done;
}

int fsync(int fd) {
    REAL(fsync);
    pthread_mutex_lock(&one);
    int done = synced(real(fd), fd);
    pthread_mutex_unlock(&one);
    return done;
}

int fdatasync(int fd) {
    REAL(fdatasync);
    pthread_mutex_lock(&one);
    int done = synced(real(fd), fd);
    pthread_mutex_unlock(&one);
    return done;
}
