/* test_safetensors.c: files as the format's description has them, files that lie, and a module's state. */
#include "runtime/module.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HAS(text, part) cr_assert(strstr((text), (part)), "\"%s\" is not in \"%s\"", (part), (text))

static char folder[] = "/tmp/kiln-safetensors-XXXXXX";

static void setup(void) { cr_assert_not_null(mkdtemp(folder)); }

static int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void teardown(void)
{
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            remove(path);
        }
    closedir(d);
    rmdir(folder);
}

TestSuite(safetensors, .init = setup, .fini = teardown);

static const char *path_of(const char *name)
{
    static char paths[4][128];
    static int next;
    char *p = paths[next++ & 3];
    snprintf(p, sizeof paths[0], "%s/%s", folder, name);
    return p;
}

static void put(FILE *f, uint64_t n)
{
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> 8 * i & 255), f);
}

/* A file by hand: the length given (or the header's own), the header, n bytes 0, 1, 2 … */
static const char *file_of(int64_t length, const char *header, size_t header_bytes, int n)
{
    const char *path = path_of("made.safetensors");
    FILE *f = fopen(path, "wb");
    put(f, length < 0 ? header_bytes : (uint64_t)length);
    fwrite(header, 1, header_bytes, f);
    for (int i = 0; i < n; i++)
        fputc(i & 255, f);
    fclose(f);
    return path;
}

static const char *file(const char *header, int n) { return file_of(-1, header, strlen(header), n); }

static void refused(const char *path, const char *why)
{
    kn_store *s = kn_store_open(path);
    cr_assert_null(s, "a file was taken that should fail with \"%s\"", why);
    HAS(kn_last_error(), why);
}

Test(safetensors, a_file_by_hand)
{
    KN_SCOPE;
    kn_store *s = kn_store_open(file("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
                                     "\"a\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[0,4]},"
                                     "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[4,4]},"
                                     "\"scalar\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[7,11]}}   ", 11));
    cr_assert_not_null(s, "%s", kn_last_error());
    cr_assert_eq(kn_store_count(s), 4);
    const char *const names[] = {"a", "b", "empty", "scalar"};
    for (size_t i = 0; i < 4; i++)
        cr_assert_str_eq(kn_store_name(s, i), names[i]);
    cr_assert_null(kn_store_name(s, 4));
    cr_assert_str_eq(kn_store_metadata(s, "format"), "pt");
    cr_assert_null(kn_store_metadata(s, "none"));
    kn_tensor *b = kn_store_get(s, "b"), *a = kn_store_get(s, "a"), *e = kn_store_get(s, "empty"), *c = kn_store_get(s, "scalar");
    uint8_t bytes[3];
    int16_t shorts[2];
    cr_assert_eq(kn_read(b, bytes, sizeof bytes), KN_OK);
    cr_assert(bytes[0] == 4 && bytes[2] == 6);
    cr_assert_eq(kn_tensor_dtype(a), KN_I16);
    cr_assert_eq(kn_read(a, shorts, sizeof shorts), KN_OK);
    cr_assert(shorts[0] == 0x0100 && shorts[1] == 0x0302);
    cr_assert_eq(kn_size(e, 1), 9);
    cr_assert_eq(kn_numel(e), 0);
    cr_assert_eq(kn_item_int(c), 0x0a090807, "data that isn't aligned");
    HAS(kn_tensor_error(kn_store_get(s, "z")), "has no tensor \"z\"");
    kn_store_close(s);
    cr_assert_eq(kn_item_int(c), 0x0a090807, "tensors outlive the store");
    cr_assert(kn_failed(kn_store_get((kn_store *)NULL, "a")));
    kn_store_close(NULL);
}

#define T1(dtype, shape, begin, end) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}}"
#define T2(b1, e1, b2, e2) "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" b1 "," e1 "]}," \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" b2 "," e2 "]}}"

Test(safetensors, lying_files_are_refused_with_a_reason)
{
    const struct { const char *header; int bytes; const char *why; } cases[] = {
        {T1("F32", "[2]", "0", "8"), 7, "ends at byte 8 of the data, the file has 7"},
        {T1("F32", "[2]", "0", "8"), 9, "1 bytes after the last tensor"},
        {T1("F32", "[2]", "0", "4"), 4, "is f32[2], 8 bytes, but its data are 4"},
        {T1("F32", "[3]", "4", "16"), 16, "4 bytes before tensor"},
        {T1("F32", "[1]", "4", "0"), 4, "end before they begin"},
        {T1("F32", "[1]", "-4", "0"), 4, "negative"},
        {T1("F32", "[1]", "0", "4.0"), 4, "no pair of integers"},
        {T1("F32", "[-1]", "0", "4"), 4, "a size is no integer, or negative"},
        {T1("F32", "[1.5]", "0", "4"), 4, "a size is no integer"},
        {T1("F32", "4", "0", "4"), 4, "\"shape\" is missing or no list"},
        {T1("F32", "[4294967296,4294967296,4]", "0", "4"), 4, "more elements than can be counted"},
        {T1("F32", "[4611686018427387904]", "0", "0"), 0, "more bytes than can be counted"},
        {T1("F32", "[9223372036854775807,2]", "0", "4"), 4, "than can be counted"},
        {T1("F32", "[99999999999999999999]", "0", "4"), 4, "JSON"},
        {T1("F32", "[1]", "0", "18446744073709551616"), 4, "JSON"},
        {T1("F8_E4M3", "[4]", "0", "8"), 4, "ends at byte 8"},
        {T2("0", "4", "2", "6"), 6, "overlap"},
        {T2("0", "4", "0", "4"), 4, "overlap"},
        {T2("0", "4", "5", "9"), 9, "1 bytes before tensor \"b\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "metadata \"a\" are no string"},
        {"{\"__metadata__\":[]}", 0, "the metadata are no object"},
        {"{\"a\":[]}", 0, "its entry is no object"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0, "\"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "\"data_offsets\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0, "no pair"},
        {"[]", 0, "no JSON object"},
        {"", 0, "JSON"},
        {"{", 0, "JSON"},
        {"{} x", 0, "JSON"},
        {"{\"\\u0000\":1}", 0, "JSON"},
        {"{\"\xff\":1}", 0, "JSON"},
        {"{}", 3, "3 bytes after"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(file(cases[i].header, cases[i].bytes), cases[i].why);
}

Test(safetensors, damaged_headers_are_refused)
{
    refused(file_of(1000, "{}", 2, 0), "the header has 1000 bytes, the file only 10");
    refused(file_of(INT64_MAX, "{}", 2, 0), "is refused");
    refused(file_of(100 * 1000 * 1000 + 1, "{}", 2, 0), "is refused");
    refused(file_of(3, "{}", 2, 0), "the header has 3 bytes");
    refused(file_of(-1, "{}\0\0", 4, 0), "JSON");
    FILE *f = fopen(path_of("short"), "wb");
    fwrite("\2\0\0", 1, 3, f);
    fclose(f);
    refused(path_of("short"), "too few");
    refused(path_of("none"), "can't be opened");
    refused(folder, "is no regular file");
    refused("/dev/zero", "is no regular file");
    cr_assert_null(kn_store_open(NULL));
    enum { DEPTH = 200000 };
    char *deep = kb_alloc(DEPTH);
    memset(deep, '[', DEPTH);
    refused(file_of(-1, deep, DEPTH, 0), "JSON");
    kb_free(deep);
}

/* Every prefix of a good file, and every byte of its header replaced, is either refused or read without harm. */
Test(safetensors, no_damage_crashes)
{
    KN_SCOPE;
    const char *header = "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
    unsigned char good[256];
    size_t n = 8 + strlen(header) + 16;
    FILE *f = fopen(file(header, 16), "rb");
    cr_assert_eq(fread(good, 1, sizeof good, f), n);
    fclose(f);
    int refusals = 0;
    const char *path = path_of("damaged");
    for (size_t cut = 0; cut < n; cut++) {
        f = fopen(path, "wb");
        fwrite(good, 1, cut, f);
        fclose(f);
        cr_assert_null(kn_store_open(path), "cut at %zu", cut);
    }
    const unsigned char others[] = {0, '"', '}', '9', '-', 0xff};
    for (size_t at = 0; at < n - 16; at++)
        for (size_t i = 0; i < sizeof others; i++) {
            unsigned char copy[256];
            memcpy(copy, good, n);
            copy[at] = others[i];
            f = fopen(path, "wb");
            fwrite(copy, 1, n, f);
            fclose(f);
            kn_store *s = kn_store_open(path);
            refusals += !s;
            if (s && kn_store_name(s, 0))
                kn_store_get(s, kn_store_name(s, 0));
            kn_store_close(s);
        }
    cr_assert_gt(refusals, 100);
}

Test(safetensors, unknown_dtypes_and_ranks_are_refused_when_asked_for)
{
    KN_SCOPE;
    kn_store *s = kn_store_open(file("{\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                     "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[3,4]},"
                                     "\"good\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}", 5));
    cr_assert_not_null(s, "%s", kn_last_error());
    HAS(kn_tensor_error(kn_store_get(s, "f8")), "F8_E4M3");
    cr_assert_eq(kn_tensor_status(kn_store_get(s, "f8")), KN_E_DTYPE);
    HAS(kn_tensor_error(kn_store_get(s, "deep")), "9 dimensions");
    cr_assert_eq(kn_item_int(kn_store_get(s, "good")), 4);
    kn_store_close(s);
}

Test(safetensors, a_file_cut_short_after_opening_is_an_error)
{
    KN_SCOPE;
    const char *path = file(T1("F32", "[1024]", "0", "4096"), 4096);
    kn_store *s = kn_store_open(path);
    cr_assert_not_null(s);
    cr_assert_eq(truncate(path, 200), 0);
    cr_assert_eq(kn_tensor_status(kn_store_get(s, "a")), KN_E_FORMAT);
    kn_store_close(s);
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------------- */
static size_t slurp(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    size_t n = fread(out, 1, size, f);
    fclose(f);
    return n;
}

Test(safetensors, written_files_are_the_formats)
{
    KN_SCOPE;
    bool flags[3] = {true, false, true};
    kn_tensor *x = kn_from_data(KN_F32, KN_SHAPE(2, 3), ((float[]){1, 2, 3, 4, 5, 6}));
    kn_tensor *tensors[4] = {kn_from_data(KN_BOOL, KN_SHAPE(3), flags), kn_transpose(x, 0, 1), kn_from_data(KN_F64, KN_SHAPE0, &(double){0.5}),
        kn_zeros(KN_F32, KN_SHAPE(0))};
    const char *const names[4] = {"flags", "w\"", "c", "empty"};
    const char *path = path_of("w1");
    char one[512], two[512];
    cr_assert_eq(kn_store_write(path, 4, names, tensors), KN_OK, "%s", kn_last_error());
    size_t n = slurp(path, one, sizeof one), header = (unsigned char)one[0] + 256 * (size_t)(unsigned char)one[1];
    const char *want = "{\"c\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"empty\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},"
                       "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[32,35]},\"w\\\"\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[8,32]}}";
    cr_assert_eq(header % 8, 0);
    cr_assert_eq(n, 8 + header + 35);
    cr_assert_arr_eq(one + 8, want, strlen(want));
    float w[6];
    memcpy(w, one + 8 + header + 8, sizeof w);
    const float transposed[6] = {1, 4, 2, 5, 3, 6};
    cr_assert_arr_eq(w, transposed, sizeof w);
    kn_tensor *again[4] = {tensors[3], tensors[2], tensors[1], tensors[0]};
    const char *const other_order[4] = {"empty", "c", "w\"", "flags"};
    cr_assert_eq(kn_store_write(path_of("w2"), 4, other_order, again), KN_OK);
    cr_assert_eq(slurp(path_of("w2"), two, sizeof two), n);
    cr_assert_arr_eq(one, two, n, "the same bytes whatever the order given");
    kn_store *s = kn_store_open(path);
    cr_assert_not_null(s, "%s", kn_last_error());
    cr_assert(kn_allclose(kn_store_get(s, "w\""), tensors[1], 0, 0));
    kn_store_close(s);
    cr_assert_eq(files_in_folder(), 2, "no temporary files are left");
}

Test(safetensors, a_failed_write_leaves_the_old_file)
{
    KN_SCOPE;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2)), *bad = kn_reshape(x, KN_SHAPE(3)), *both[2] = {x, bad}, *twice[2] = {x, x};
    const char *const names[2] = {"a", "b"}, *const same[2] = {"a", "a"}, *const meta[1] = {"__metadata__"}, *const latin[1] = {"\xe9"};
    const char *path = path_of("kept");
    char before[256], after[256];
    cr_assert_eq(kn_store_write(path, 1, names, &x), KN_OK);
    size_t n = slurp(path, before, sizeof before);
    cr_assert_eq(kn_store_write(path, 2, names, both), KN_E_SHAPE);
    cr_assert_eq(kn_store_write(path, 2, same, twice), KN_E_VALUE);
    cr_assert_eq(kn_store_write(path, 1, meta, &x), KN_E_VALUE);
    cr_assert_eq(kn_store_write(path, 1, latin, &x), KN_E_VALUE);
    cr_assert_eq(slurp(path, after, sizeof after), n);
    cr_assert_arr_eq(before, after, n);
    cr_assert_eq(kn_store_write(path_of("no/such/folder"), 1, names, &x), KN_E_IO);
    cr_assert_eq(kn_store_write(folder, 1, names, &x), KN_E_IO, "a folder is not replaced");
    cr_assert_eq(files_in_folder(), 1);
}

/* ---- state ------------------------------------------------------------------------------------------------------------------------------- */
Test(safetensors, state_goes_out_and_comes_back)
{
    KN_SCOPE;
    kn_manual_seed(1);
    kn_module *a = kn_nn_sequential(kn_nn_linear(3, 4), kn_nn_layer_norm(4)),
              *b = kn_nn_sequential(kn_nn_linear(3, 4), kn_nn_layer_norm(4));
    const char *path = path_of("state");
    kn_tensor *handle = kn_module_tensor(b, "0.weight");
    cr_assert_eq(kn_save_state(a, path), KN_OK, "%s", kn_last_error());
    cr_assert_not(kn_allclose(handle, kn_module_tensor(a, "0.weight"), 0, 0), "two random starts");
    uint64_t version = handle->storage->version;
    cr_assert_eq(kn_load_state(b, path), KN_OK, "%s", kn_last_error());
    cr_assert_eq(kn_module_tensor(b, "0.weight"), handle, "copied into what was there");
    cr_assert(kn_allclose(handle, kn_module_tensor(a, "0.weight"), 0, 0));
    cr_assert_gt(handle->storage->version, version, "caches of the old values can tell");
    kn_store *s = kn_store_open(path);
    cr_assert_eq(kn_store_count(s), 4);
    cr_assert_str_eq(kn_store_name(s, 2), "1.bias");
    kn_store_close(s);
    kn_module_set_tensor(b, "0.weight", kn_transpose(kn_zeros(KN_F32, KN_SHAPE(3, 4)), 0, 1));
    cr_assert_eq(kn_load_state(b, path), KN_OK, "%s", kn_last_error());
    cr_assert(kn_allclose(kn_module_tensor(b, "0.weight"), kn_module_tensor(a, "0.weight"), 0, 0), "into a strided tensor");
    kn_module_free(a);
    kn_module_free(b);
}

Test(safetensors, all_that_does_not_fit_is_listed_and_nothing_is_changed)
{
    KN_SCOPE;
    kn_module *a = kn_nn_sequential(kn_nn_linear(3, 4), kn_nn_layer_norm(4)),
              *b = kn_nn_sequential(kn_nn_linear(5, 4, .no_bias = true), kn_nn_layer_norm(4), kn_nn_linear(1, 1, .dtype = KN_F64));
    const char *path = path_of("state");
    kn_tensor *norm = kn_module_tensor(b, "1.weight");
    kn_fill_(norm, 7);
    cr_assert_eq(kn_save_state(a, path), KN_OK);
    cr_assert_eq(kn_load_state(b, path), KN_E_VALUE);
    HAS(kn_last_error(), "missing \"2.weight\", \"2.bias\"");
    HAS(kn_last_error(), "unexpected \"0.bias\"");
    HAS(kn_last_error(), "\"0.weight\" (f32[4, 5], in the file f32[4, 3])");
    cr_assert_eq(kn_item(kn_amax(norm)), 7, "what would fit was not copied either");
    kn_module *c = kn_nn_linear(3, 4), *d = kn_nn_linear(3, 4, .dtype = KN_F64), *e = kn_nn_linear(4, 4);
    cr_assert_eq(kn_save_state(c, path), KN_OK);
    cr_assert_eq(kn_load_state(d, path), KN_E_DTYPE);
    cr_assert_eq(kn_load_state(e, path), KN_E_SHAPE);
    cr_assert_eq(kn_load_state(c, path_of("none")), KN_E_IO);
    cr_assert_neq(kn_load_state(NULL, path), KN_OK);
    kn_module *all[5] = {a, b, c, d, e};
    for (int i = 0; i < 5; i++)
        kn_module_free(all[i]);
}

Test(safetensors, long_lists_are_cut_not_lost)
{
    KN_SCOPE;
    kn_module *children[60], *more[60];
    for (int i = 0; i < 60; i++) {
        children[i] = kn_nn_linear(2, 2);
        more[i] = kn_nn_linear(3, 3, .no_bias = true);
    }
    kn_module *a = (kn_nn_sequential)(60, children), *b = (kn_nn_sequential)(60, more);
    cr_assert_eq(kn_save_state(a, path_of("state")), KN_OK);
    cr_assert_eq(kn_load_state(b, path_of("state")), KN_E_VALUE);
    HAS(kn_last_error(), "unexpected \"0.bias\"");
    HAS(kn_last_error(), "not alike \"0.weight\"");
    HAS(kn_last_error(), " more");
    kn_module_free(a);
    kn_module_free(b);
}

Test(safetensors, mapped_tensors_are_not_overwritten)
{
    KN_SCOPE;
    kn_module *m = kn_nn_linear(2, 2);
    cr_assert_eq(kn_save_state(m, path_of("state")), KN_OK);
    kn_tensor *bias = kn_module_tensor(m, "bias");
    cr_assert_not_null(kn_map(bias));
    cr_assert_eq(kn_load_state(m, path_of("state")), KN_E_STATE);
    kn_unmap(bias);
    cr_assert_eq(kn_load_state(m, path_of("state")), KN_OK);
    kn_module_free(m);
}
