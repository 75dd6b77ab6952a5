/* Whole files, in a folder of the test's own.
 *
 * Proves that what is written comes back, at and one beyond the limit; that a file has its old
 * content until the commit and its new one after it, and that no temporary file stays behind after
 * commit, abandon or failure; that a file of unknown size (/proc) is read; that folders, pipes,
 * missing files, a full device and overlong paths are the status that the header says.
 */
#include "base/files.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *in_folder(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    CHECK_INT(files_join(path, sizeof paths[0], folder, name), STATUS_OK);
    return path;
}

static int entries_in(const char *path) {
    DIR *open_folder = opendir(path);
    CHECK(open_folder);
    int count = 0;
    for (struct dirent *entry = readdir(open_folder); entry; entry = readdir(open_folder))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(open_folder);
    return count;
}

static void write_file(const char *path, const void *data, size_t bytes) {
    struct files_writer writer;
    CHECK_INT(files_create(&writer, path), STATUS_OK);
    CHECK_INT(files_write(&writer, data, bytes), STATUS_OK);
    CHECK_INT(files_commit(&writer), STATUS_OK);
    files_abandon(&writer); /* harmless */
}

static void check_content(const char *path, const char *expected) {
    char *content;
    size_t bytes;
    CHECK_INT(files_read(path, 1000, &content, &bytes), STATUS_OK);
    CHECK_INT(bytes, strlen(expected));
    CHECK_TEXT(content, expected); /* which also proves the 0 byte */
    free(content);
}

static void test_sizes(void) {
    static char data[20000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7 + i / 251);
    const size_t sizes[] = {0, 1, 4095, 4096, 4097, 8192, 20000};
    const char *path = in_folder("sized");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *content = NULL;
        size_t bytes = 77;
        write_file(path, data, sizes[i]);
        CHECK_INT(files_read(path, sizes[i], &content, &bytes), STATUS_OK);
        CHECK_INT(bytes, sizes[i]);
        CHECK(memcmp(content, data, bytes) == 0 && content[bytes] == 0);
        free(content);
        content = NULL;
        if (sizes[i] == 0) continue;
        CHECK_INT(files_read(path, sizes[i] - 1, &content, &bytes), STATUS_INVALID);
        CHECK(content == NULL);
        CHECK_INT(bytes, sizes[i]);
    }
    CHECK_INT(unlink(path), 0);
}

static void test_whole_or_absent(void) {
    const char *path = in_folder("atomic");
    struct files_writer writer;
    CHECK_INT(files_create(&writer, path), STATUS_OK);
    CHECK_INT(files_write(&writer, "fir", 3), STATUS_OK);
    CHECK_INT(files_write(&writer, "st", 2), STATUS_OK);
    CHECK(access(path, F_OK) != 0);
    CHECK_INT(files_commit(&writer), STATUS_OK);
    check_content(path, "first");
    CHECK_INT(files_create(&writer, path), STATUS_OK);
    CHECK_INT(files_write(&writer, "second", 6), STATUS_OK);
    check_content(path, "first");
    files_abandon(&writer);
    files_abandon(&writer);
    check_content(path, "first");
    CHECK_INT(entries_in(folder), 1);
    CHECK_INT(files_commit(&writer), STATUS_IO); /* there is nothing left to commit */
    write_file(path, "third", 5);
    check_content(path, "third");
    CHECK_INT(entries_in(folder), 1);
    CHECK_INT(unlink(path), 0);
}

static void test_read_refuses(void) {
    char *content = NULL;
    size_t bytes = 0;
    CHECK_INT(files_read(in_folder("missing"), 10, &content, &bytes), STATUS_IO);
    CHECK_INT(files_read(folder, 10, &content, &bytes), STATUS_INVALID);
    const char *pipe_path = in_folder("pipe");
    CHECK_INT(mkfifo(pipe_path, 0600), 0);
    CHECK_INT(files_read(pipe_path, 10, &content, &bytes), STATUS_INVALID); /* and does not hang */
    CHECK_INT(unlink(pipe_path), 0);
    CHECK(content == NULL);
}

/* A file of /proc says that it has 0 bytes and has more. */
static void test_unknown_size(void) {
    char *content = NULL;
    size_t bytes;
    CHECK_INT(files_read("/proc/self/status", (size_t)1 << 20, &content, &bytes), STATUS_OK);
    CHECK(bytes > 100 && strncmp(content, "Name:\ttest_files", 16) == 0);
    free(content);
    content = NULL;
    CHECK_INT(files_read("/proc/self/status", 10, &content, &bytes), STATUS_INVALID);
    CHECK(content == NULL);
}

static void test_write_fails(void) {
    struct files_writer writer;
    CHECK_INT(files_create(&writer, in_folder("no/such/folder")), STATUS_IO);
    files_abandon(&writer); /* harmless */
    /* A folder at the target's name makes the rename fail. */
    const char *path = in_folder("taken");
    CHECK_INT(files_make_folder(path), STATUS_OK);
    CHECK_INT(files_create(&writer, path), STATUS_OK);
    CHECK_INT(files_commit(&writer), STATUS_IO);
    CHECK_INT(entries_in(folder), 1);
    CHECK_INT(rmdir(path), 0);
    /* A device without room makes the write fail; it takes the temporary file's place. */
    CHECK_INT(files_create(&writer, path), STATUS_OK);
    int full = open("/dev/full", O_WRONLY);
    CHECK(full >= 0);
    CHECK_INT(dup2(full, writer.fd), writer.fd);
    close(full);
    CHECK_INT(files_write(&writer, "x", 1), STATUS_IO);
    CHECK_INT(files_write(&writer, "x", 1), STATUS_IO);
    CHECK_INT(files_commit(&writer), STATUS_IO);
    CHECK_INT(entries_in(folder), 0);
}

static void test_folders(void) {
    const char *path = in_folder("a/b//c/");
    CHECK_INT(files_make_folder(path), STATUS_OK);
    CHECK_INT(files_make_folder(path), STATUS_OK);
    CHECK_INT(files_make_folder("/"), STATUS_OK);
    CHECK_INT(files_make_folder(""), STATUS_IO);
    struct stat info;
    CHECK(stat(in_folder("a/b/c"), &info) == 0 && S_ISDIR(info.st_mode));
    write_file(in_folder("a/b/file"), "x", 1);
    CHECK_INT(files_make_folder(in_folder("a/b/file/d")), STATUS_IO);
    CHECK_INT(files_make_folder(in_folder("a/b/file")), STATUS_IO);
    CHECK_INT(unlink(in_folder("a/b/file")), 0);
    CHECK_INT(rmdir(in_folder("a/b/c")), 0);
    CHECK_INT(rmdir(in_folder("a/b")), 0);
    CHECK_INT(rmdir(in_folder("a")), 0);
}

static void test_join(void) {
    char path[8];
    CHECK_INT(files_join(path, sizeof path, "abc", "def"), STATUS_OK);
    CHECK_TEXT(path, "abc/def");
    CHECK_INT(files_join(path, sizeof path, "abc", "defg"), STATUS_INVALID);
    static char longest[5000];
    memset(longest, 'n', sizeof longest - 1);
    struct files_writer writer;
    CHECK_INT(files_create(&writer, longest), STATUS_IO);
    longest[4090] = 0; /* fits itself, but not with .tmp-<pid> behind it */
    CHECK_INT(files_create(&writer, longest), STATUS_IO);
    CHECK_INT(files_make_folder(longest), STATUS_IO);
}

int main(void) {
    snprintf(folder, sizeof folder, "/tmp/rubato-test-XXXXXX");
    CHECK(mkdtemp(folder));
    TEST_RUN(test_sizes);
    TEST_RUN(test_whole_or_absent);
    TEST_RUN(test_read_refuses);
    TEST_RUN(test_unknown_size);
    TEST_RUN(test_write_fails);
    TEST_RUN(test_folders);
    TEST_RUN(test_join);
    CHECK_INT(rmdir(folder), 0);
    return 0;
}
