/* A library for LD_PRELOAD: write every change of the files below a folder into a log, in the order of the changes.

   DISK_LOG_FOLDER is the folder, without symbolic links. DISK_LOG_FILE is the log, which must exist and have 8 bytes: they
   are the lock that processes and threads take around each call. tests/crash/disk.py reads the log.
   After the lock, the log has records: a struct head, then `size` bytes of names or data. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* kind: C a new file, D a new folder, L a second name, U a removed name, R a renamed file or folder, W data, T a new length,
   S a synced file or folder, A everything is synced, X a function that this library does not understand.
   folder, to: inodes of the folders of the names. offset: of data, or the new length. */
struct head { uint64_t kind, inode, folder, to, offset, size; };

static char root[PATH_MAX];
static size_t root_size;
static int log_fd = -1;
static volatile int *lock_word;
/* Shared writable maps. LMDB makes such a map with MDB_WRITEMAP, and writes it with msync. */
static struct map { char *start; size_t size; uint64_t inode, offset; } maps[64];

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *folder = getenv("DISK_LOG_FOLDER"), *file = getenv("DISK_LOG_FILE");
    if (!folder || !file)
        return;
    strncpy(root, folder, sizeof root - 1);
    root_size = strlen(root);
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_APPEND | O_CLOEXEC);
    lock_word = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 1000); /* a number that no program closes by chance */
    syscall(SYS_close, fd);
}

static void take(void)
{
    while (lock_word && __sync_lock_test_and_set(lock_word, 1))
        sched_yield();
}

static void release(void)
{
    int kept = errno;
    if (lock_word)
        __sync_lock_release(lock_word);
    errno = kept;
}

static void note(struct head head, const void *data)
{
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, head.size}};
    if (syscall(SYS_writev, log_fd, parts, 2) != (ssize_t)(sizeof head + head.size))
        abort();
}

/* The inode of an open file or folder that is in the log, else 0. */
static uint64_t inode_of(int fd)
{
    char link[32] = "/proc/self/fd/", path[PATH_MAX];
    struct stat status;
    if (log_fd < 0 || fd < 0)
        return 0;
    int digits = 1;
    for (int left = fd; left > 9; left /= 10)
        digits++;
    for (int left = fd, at = 13 + digits; digits--; left /= 10)
        link[at--] = '0' + left % 10;
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    int inside = size >= (ssize_t)root_size && !memcmp(path, root, root_size);
    inside = inside && (size == (ssize_t)root_size || path[root_size] == '/');
    return inside && !fstat(fd, &status) ? status.st_ino : 0;
}

/* The inode of the folder of a path if it is in the log, else 0; and the last part of the path. */
static uint64_t parent_of(int at, const char *path, char name[NAME_MAX + 1])
{
    char folder[PATH_MAX];
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    size_t begin = size;
    while (begin && path[begin - 1] != '/')
        begin--;
    if (log_fd < 0 || size >= sizeof folder || size - begin > NAME_MAX)
        return 0;
    memcpy(name, path + begin, size - begin);
    name[size - begin] = 0;
    memcpy(folder, path, begin);
    folder[begin] = 0;
    int fd = syscall(SYS_openat, at, begin ? folder : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    uint64_t inode = inode_of(fd);
    if (fd >= 0)
        syscall(SYS_close, fd);
    return inode;
}

static uint64_t inode_at(int at, const char *path)
{
    struct stat status;
    return fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) ? 0 : status.st_ino;
}

/* ---- Names */

static int open_logged(int at, const char *path, int flags, mode_t mode)
{
    char name[NAME_MAX + 1] = "";
    int changes = flags & (O_CREAT | O_TRUNC);
    if (log_fd < 0 || (!changes && (flags & O_TMPFILE) != O_TMPFILE))
        return syscall(SYS_openat, at, path, flags, mode);
    take();
    uint64_t folder = parent_of(at, path, name), before = folder ? inode_at(at, path) : 0;
    int fd = syscall(SYS_openat, at, path, flags, mode), kept = errno;
    uint64_t inode = fd < 0 ? 0 : inode_of(fd);
    if (inode && (flags & O_TMPFILE) == O_TMPFILE)
        note((struct head){'C', inode, 0, 0, 0, 0}, "");
    else if (inode && folder && !before)
        note((struct head){'C', inode, folder, 0, 0, strlen(name)}, name);
    else if (inode && flags & O_TRUNC)
        note((struct head){'T', inode, 0, 0, 0, 0}, "");
    errno = kept;
    release();
    return fd;
}

static mode_t mode_in(va_list rest, int flags)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(at) va_list rest; va_start(rest, flags); int fd = open_logged(at, path, flags, mode_in(rest, flags)); \
    va_end(rest); return fd;
int open(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int openat(int at, const char *path, int flags, ...) { OPEN(at) }
int openat64(int at, const char *path, int flags, ...) { OPEN(at) }

static int make_folder(int at, const char *path, mode_t mode)
{
    char name[NAME_MAX + 1] = "";
    take();
    int result = syscall(SYS_mkdirat, at, path, mode);
    uint64_t folder = result ? 0 : parent_of(at, path, name);
    if (folder)
        note((struct head){'D', inode_at(at, path), folder, 0, 0, strlen(name)}, name);
    release();
    return result;
}

int mkdir(const char *path, mode_t mode) { return make_folder(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return make_folder(at, path, mode); }

static int remove_name(int at, const char *path, int flags)
{
    char name[NAME_MAX + 1] = "";
    take();
    uint64_t folder = parent_of(at, path, name);
    int result = syscall(SYS_unlinkat, at, path, flags);
    if (!result && folder)
        note((struct head){'U', 0, folder, 0, 0, strlen(name)}, name);
    release();
    return result;
}

int unlink(const char *path) { return remove_name(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return remove_name(at, path, flags); }
int rmdir(const char *path) { return remove_name(AT_FDCWD, path, AT_REMOVEDIR); }

static int two_names(int kind, int from_at, const char *from, int to_at, const char *to, int flags)
{
    char names[2 * NAME_MAX + 2] = "", *second;
    take();
    uint64_t folder = parent_of(from_at, from, names), inode = folder ? inode_at(from_at, from) : 0;
    second = names + strlen(names) + 1;
    uint64_t other = parent_of(to_at, to, second);
    int same = inode && inode_at(to_at, to) == inode; /* renaming one of two names of a file to the other does nothing */
    int result = kind == 'L' ? syscall(SYS_linkat, from_at, from, to_at, to, flags)
                             : syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    if (!result && (folder || other) && !same) {
        int known = folder && other && (kind == 'L' || !flags);
        note((struct head){known ? kind : 'X', inode, folder, other, 0, second - names + strlen(second)}, names);
    }
    release();
    return result;
}

int rename(const char *from, const char *to) { return two_names('R', AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int at, const char *from, int there, const char *to) { return two_names('R', at, from, there, to, 0); }
int renameat2(int at, const char *from, int there, const char *to, unsigned flags)
{ return two_names('R', at, from, there, to, flags); }
int link(const char *from, const char *to) { return two_names('L', AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int at, const char *from, int there, const char *to, int flags)
{ return two_names('L', at, from, there, to, flags); }

/* ---- Data */

/* Note that `size` bytes were written. With `offset` -1, they end at the file's position. */
static void note_data(int fd, const void *data, ssize_t size, off_t offset)
{
    uint64_t inode = size > 0 ? inode_of(fd) : 0;
    if (!inode)
        return;
    if (offset < 0)
        offset = lseek(fd, 0, SEEK_CUR) - size;
    note((struct head){'W', inode, 0, 0, offset, size}, data);
    if (fcntl(fd, F_GETFL) & O_DSYNC) /* LMDB writes its meta pages in this way */
        note((struct head){'S', inode, 0, 0, 0, 0}, "");
}

static void note_parts(int fd, const struct iovec *parts, int count, ssize_t size, off_t offset)
{
    if (size > 0 && offset < 0)
        offset = lseek(fd, 0, SEEK_CUR) - size;
    for (int part = 0; part < count && size > 0; part++) {
        ssize_t here = (ssize_t)parts[part].iov_len < size ? (ssize_t)parts[part].iov_len : size;
        note_data(fd, parts[part].iov_base, here, offset);
        offset += here;
        size -= here;
    }
}

/* Without the lock where no file is logged: a write to a full pipe waits for its reader. */
#define LOGGED(fd, call, after) \
    if (!inode_of(fd)) return call; \
    take(); __typeof__(call) result = call; int kept = errno; after; errno = kept; release(); return result;

ssize_t write(int fd, const void *data, size_t size)
{ LOGGED(fd, (ssize_t)syscall(SYS_write, fd, data, size), note_data(fd, data, result, -1)) }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{ LOGGED(fd, (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset), note_data(fd, data, result, offset)) }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count)
{ LOGGED(fd, (ssize_t)syscall(SYS_writev, fd, parts, count), note_parts(fd, parts, count, result, -1)) }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{ LOGGED(fd, (ssize_t)syscall(SYS_pwritev, fd, parts, count, offset, 0), note_parts(fd, parts, count, result, offset)) }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset)
{ return pwritev(fd, parts, count, offset); }

static void note_length(int fd, int result, off_t size)
{
    uint64_t inode = result ? 0 : inode_of(fd);
    if (inode)
        note((struct head){'T', inode, 0, 0, size, 0}, "");
}

int ftruncate(int fd, off_t size) { LOGGED(fd, (int)syscall(SYS_ftruncate, fd, size), note_length(fd, result, size)) }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

/* Functions that Python or LMDB could use to change files in a way that is not simulated. */
static void unknown(int fd, ssize_t result, const char *name)
{
    uint64_t inode = result < 0 ? 0 : inode_of(fd);
    if (inode)
        note((struct head){'X', inode, 0, 0, 0, strlen(name)}, name);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size)
{ LOGGED(to, REAL(sendfile)(to, from, offset, size), unknown(to, result, "sendfile")) }
ssize_t sendfile64(int to, int from, off_t *offset, size_t size) { return sendfile(to, from, offset, size); }
ssize_t copy_file_range(int from, off64_t *start, int to, off64_t *offset, size_t size, unsigned flags)
{ LOGGED(to, REAL(copy_file_range)(from, start, to, offset, size, flags), unknown(to, result, "copy_file_range")) }
int posix_fallocate(int fd, off_t offset, off_t size)
{ LOGGED(fd, REAL(posix_fallocate)(fd, offset, size), unknown(fd, result, "posix_fallocate")) }

/* ---- Syncing */

static void note_sync(int fd, int result)
{
    uint64_t inode = result ? 0 : inode_of(fd);
    if (inode)
        note((struct head){'S', inode, 0, 0, 0, 0}, "");
}

int fsync(int fd) { LOGGED(fd, (int)syscall(SYS_fsync, fd), note_sync(fd, result)) }
int fdatasync(int fd) { LOGGED(fd, (int)syscall(SYS_fdatasync, fd), note_sync(fd, result)) }
int syncfs(int fd)
{ LOGGED(fd, (int)syscall(SYS_syncfs, fd), if (!result) note((struct head){'A', 0, 0, 0, 0, 0}, "")) }

void *mmap(void *start, size_t size, int rights, int flags, int fd, off_t offset)
{
    void *made = (void *)syscall(SYS_mmap, start, size, rights, flags, fd, offset);
    if (log_fd < 0 || made == MAP_FAILED || !(flags & MAP_SHARED) || !(rights & PROT_WRITE) || flags & MAP_ANONYMOUS)
        return made;
    take();
    uint64_t inode = inode_of(fd);
    for (size_t at = 0; inode && at < sizeof maps / sizeof *maps; at++)
        if (!maps[at].size) {
            maps[at] = (struct map){made, size, inode, offset};
            break;
        }
    release();
    return made;
}

void *mmap64(void *start, size_t size, int rights, int flags, int fd, off_t offset)
{ return mmap(start, size, rights, flags, fd, offset); }

/* Note the content of a map as data of its file. What reaches the disk before msync or munmap is not simulated. */
static struct map *note_map(char *start, size_t size)
{
    for (size_t at = 0; at < sizeof maps / sizeof *maps; at++)
        if (maps[at].size && start >= maps[at].start && start < maps[at].start + maps[at].size) {
            struct map *map = maps + at;
            size_t left = map->size - (start - map->start);
            size = size < left ? size : left;
            note((struct head){'W', map->inode, 0, 0, map->offset + (start - map->start), size}, start);
            return map;
        }
    return NULL;
}

int msync(void *start, size_t size, int flags)
{
    take();
    int result = syscall(SYS_msync, start, size, flags);
    struct map *map = result ? NULL : note_map(start, size);
    if (map && flags & MS_SYNC)
        note((struct head){'S', map->inode, 0, 0, 0, 0}, "");
    release();
    return result;
}

int munmap(void *start, size_t size)
{
    if (log_fd < 0)
        return syscall(SYS_munmap, start, size);
    take();
    struct map *map = note_map(start, size);
    if (map)
        map->size = 0;
    int result = syscall(SYS_munmap, start, size);
    release();
    return result;
}
