/* digits_data.h: 360 real images of handwritten digits with their labels, and the logits that PyTorch gave for each model. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H
#include <kiln/kiln.h>
#include <stdio.h>

enum { IMAGES = 360, CLASSES = 10, TOKENS = 33 };

typedef struct Digits { kn_tensor *images, *tokens; int64_t labels[IMAGES]; float want[IMAGES * CLASSES]; } Digits;

static inline const char *path_of(const char *folder, const char *model)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/digits%s%s.safetensors", folder, model ? "-" : "", model ? model : "");
    return path;
}

/* The test images as floats of 0 to 1, (360, 8, 8), their labels, and the logits expected of one model. */
static inline kn_status read_digits(const char *folder, const char *model, Digits *d)
{
    KN_SCOPE;
    char name[64];
    int64_t index[IMAGES], labels[2000];
    kn_store *store = kn_store_open(path_of(folder, NULL));
    kn_tensor *all = kn_div(kn_to(kn_store_get(store, "images"), KN_F32), 16.0), *rows[IMAGES];
    kn_tensor *all_labels = kn_store_get(store, "labels");
    size_t n_labels = kn_failed(all_labels) ? 0 : (size_t)kn_numel(all_labels);
    snprintf(name, sizeof name, "logits.%s", model);
    kn_status s = kn_read(kn_store_get(store, "test_index"), index, sizeof index);
    if (s == KN_OK)
        s = kn_read(kn_store_get(store, name), d->want, sizeof d->want);
    if (s == KN_OK && n_labels <= 2000)
        s = kn_read(all_labels, labels, n_labels * sizeof *labels);
    for (int i = 0; s == KN_OK && i < IMAGES; i++) {
        rows[i] = kn_select(all, 0, index[i]);
        if (kn_failed(rows[i]))
            s = kn_tensor_status(rows[i]);
        else
            d->labels[i] = labels[index[i]];
    }
    if (s == KN_OK) {                       /* stacked in pieces: one call takes at most 64 tensors */
        kn_tensor *pieces[IMAGES / 60];
        for (int i = 0; i < IMAGES / 60; i++)
            pieces[i] = kn_stack(60, rows + 60 * i, 0);
        kn_tensor *images = kn_cat(IMAGES / 60, pieces, 0);
        s = kn_failed(images) ? kn_tensor_status(images) : KN_OK;
        if (s == KN_OK)
            kn_assign(&d->images, images);
    }
    kn_store_close(store);
    return s;
}

/* The same images for the transformer: a class token, then one for each horizontal pair of pixels, each of which has nine shades. */
static inline kn_status make_tokens(Digits *d)
{
    KN_SCOPE;
    static float pixels[IMAGES][64];
    static int64_t tokens[TOKENS][IMAGES];
    kn_status s = kn_read(d->images, pixels, sizeof pixels);
    for (int i = 0; s == KN_OK && i < IMAGES; i++) {
        tokens[0][i] = 81;
        for (int t = 1; t < TOKENS; t++)
            tokens[t][i] = (int)(pixels[i][2 * t - 2] * 16) / 2 * 9 + (int)(pixels[i][2 * t - 1] * 16) / 2;
    }
    if (s == KN_OK)
        kn_assign(&d->tokens, kn_from_data(KN_I64, KN_SHAPE(TOKENS, IMAGES), tokens));
    return s;
}

#endif
