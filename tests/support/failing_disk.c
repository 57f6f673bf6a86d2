/* Preloaded into a process: below $FAILING_DISK_FOLDER the disk is as the file $FAILING_DISK says, whose
 * first letter is looked at before each call: f full, q over its quota (both: what is there can be
 * written over, nothing grows), r read-only, e does not sync; no such file: it is whole. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) \
    static typeof(name) *real; \
    if (!real) real = (typeof(name) *)dlsym(RTLD_NEXT, #name)

static char state(void) {
    struct stat found;
    const char *control = getenv("FAILING_DISK");
    if (!control || stat(control, &found) || !found.st_size) return 0;
    static typeof(open) *real_open;
    if (!real_open) real_open = (typeof(open) *)dlsym(RTLD_NEXT, "open");
    char letter = 0;
    int fd = real_open(control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if (read(fd, &letter, 1) != 1) letter = 0;
    close(fd);
    return letter;
}

static int below(int fd) {
    char link[64], path[4096];
    const char *folder = getenv("FAILING_DISK_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0 || !folder) return 0;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int refuses(int fd, off64_t end) {
    struct stat64 now;
    char is = state();
    if (!is || is == 'e' || !below(fd)) return 0;
    if (is == 'r') return errno = EROFS, 1;
    if (fstat64(fd, &now) || end <= now.st_size) return 0;
    return errno = is == 'q' ? EDQUOT : ENOSPC, 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    return refuses(fd, offset + (off64_t)size) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return pwrite64(fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    return at >= 0 && refuses(fd, at + (off64_t)size) ? -1 : real(fd, data, size);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    return refuses(fd, size) ? -1 : real(fd, size);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int fails(int fd) {
    if (state() != 'e' || !below(fd)) return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    REAL(fsync);
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return fails(fd) ? -1 : real(fd);
}
