/* wordpiece.h: BERT's tokenizer for uncased models: text to the numbers of vocab.txt. Lower case, accents taken off, a word for each run of
 * letters and digits, a word for each punctuation mark and each Chinese character; then each word in the longest pieces that the vocabulary
 * has, "[UNK]" where it has none. Accents and case are known for Latin letters up to U+017F, case also for Greek and Cyrillic ones. */
#ifndef WORDPIECE_H
#define WORDPIECE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Piece { const char *text; int id; } Piece;
typedef struct Vocabulary { char *text; Piece *pieces; int n; } Vocabulary;
enum { WP_UNKNOWN = 100, WP_CLS = 101, WP_SEP = 102, WP_LONGEST_WORD = 100 };

static int wp_by_text(const void *a, const void *b) { return strcmp(((const Piece *)a)->text, ((const Piece *)b)->text); }

static void wp_close(Vocabulary *v)
{
    free(v->text);
    free(v->pieces);
    *v = (Vocabulary){0};
}

/* A piece a line, its number is the line's. 0 when the file can't be read. */
static int wp_open(Vocabulary *v, const char *path)
{
    FILE *f = fopen(path, "rb");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    *v = (Vocabulary){0};
    if (size > 0 && fseek(f, 0, SEEK_SET) == 0)
        v->text = malloc((size_t)size + 1);
    if (!v->text || fread(v->text, 1, (size_t)size, f) != (size_t)size) {
        if (f)
            fclose(f);
        wp_close(v);
        return 0;
    }
    fclose(f);
    v->text[size] = 0;
    int lines = 1;
    for (char *p = v->text; *p; p++)
        lines += *p == '\n';
    v->pieces = malloc((size_t)lines * sizeof *v->pieces);
    for (char *p = v->text; v->pieces && *p; v->n++) {
        char *end = p + strcspn(p, "\r\n");
        v->pieces[v->n] = (Piece){p, v->n};
        p = *end == '\r' ? end + 2 : *end ? end + 1 : end;
        *end = 0;
    }
    if (v->pieces)
        qsort(v->pieces, (size_t)v->n, sizeof *v->pieces, wp_by_text);
    return v->pieces != NULL;
}

static int wp_find(const Vocabulary *v, const char *text)
{
    Piece key = {text, 0}, *p = bsearch(&key, v->pieces, (size_t)v->n, sizeof key, wp_by_text);
    return p ? p->id : -1;
}

/* ---- characters -------------------------------------------------------------------------------------------------------------------- */
/* Moves *p behind one UTF-8 character; a broken byte is a character of its own. */
static uint32_t wp_next(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p;
    int more = s[0] >= 0xF0 ? 3 : s[0] >= 0xE0 ? 2 : s[0] >= 0xC0 ? 1 : 0;
    uint32_t c = more == 3 ? s[0] & 7u : more == 2 ? s[0] & 15u : more == 1 ? s[0] & 31u : s[0];
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            *p += 1;
            return s[0];
        }
        c = c << 6 | (s[i] & 0x3Fu);
    }
    *p += 1 + more;
    return c;
}

static char *wp_put(char *to, uint32_t c)
{
    if (c < 0x80)
        *to++ = (char)c;
    else {
        int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        *to++ = (char)((more == 1 ? 0xC0u : more == 2 ? 0xE0u : 0xF0u) | c >> 6 * more);
        while (more--)
            *to++ = (char)(0x80u | (c >> 6 * more & 0x3Fu));
    }
    return to;
}

/* U+00C0 to U+017F without case and accents */
static const uint16_t wp_latin[] = {
    'a', 'a', 'a', 'a', 'a', 'a', 0xe6, 'c', 'e', 'e', 'e', 'e', 'i', 'i', 'i', 'i',
    0xf0, 'n', 'o', 'o', 'o', 'o', 'o', 0xd7, 0xf8, 'u', 'u', 'u', 'u', 'y', 0xfe, 0xdf,
    'a', 'a', 'a', 'a', 'a', 'a', 0xe6, 'c', 'e', 'e', 'e', 'e', 'i', 'i', 'i', 'i',
    0xf0, 'n', 'o', 'o', 'o', 'o', 'o', 0xf7, 0xf8, 'u', 'u', 'u', 'u', 'y', 0xfe, 'y',
    'a', 'a', 'a', 'a', 'a', 'a', 'c', 'c', 'c', 'c', 'c', 'c', 'c', 'c', 'd', 'd',
    0x111, 0x111, 'e', 'e', 'e', 'e', 'e', 'e', 'e', 'e', 'e', 'e', 'g', 'g', 'g', 'g',
    'g', 'g', 'g', 'g', 'h', 'h', 0x127, 0x127, 'i', 'i', 'i', 'i', 'i', 'i', 'i', 'i',
    'i', 0x131, 0x133, 0x133, 'j', 'j', 'k', 'k', 0x138, 'l', 'l', 'l', 'l', 'l', 'l', 0x140,
    0x140, 0x142, 0x142, 'n', 'n', 'n', 'n', 'n', 'n', 0x149, 0x14b, 0x14b, 'o', 'o', 'o', 'o',
    'o', 'o', 0x153, 0x153, 'r', 'r', 'r', 'r', 'r', 'r', 's', 's', 's', 's', 's', 's',
    's', 's', 't', 't', 't', 't', 0x167, 0x167, 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
    'u', 'u', 'u', 'u', 'w', 'w', 'y', 'y', 'y', 'z', 'z', 'z', 'z', 'z', 'z', 0x17f,
};

static uint32_t wp_fold(uint32_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c + 32;
    if (c >= 0xC0 && c < 0xC0 + sizeof wp_latin / sizeof *wp_latin)
        return wp_latin[c - 0xC0];
    if ((c >= 0x391 && c <= 0x3A9) || (c >= 0x410 && c <= 0x42F))
        return c + 32;
    return c;
}

static int wp_is_blank(uint32_t c) { return c <= ' ' || c == 0xA0 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x3000; }

static int wp_is_accent(uint32_t c) { return c >= 0x300 && c <= 0x36F; }

/* Marks that are words of their own: ASCII's that are neither letter nor digit, those of other blocks, Chinese characters. */
static int wp_stands_alone(uint32_t c)
{
    if (c < 0x80)
        return c > ' ' && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z') && c != 0x7F;
    return c == 0xA1 || c == 0xA7 || c == 0xAB || c == 0xB6 || c == 0xB7 || c == 0xBB || c == 0xBF || (c >= 0x2010 && c <= 0x2027) ||
        (c >= 0x2030 && c <= 0x205E) || (c >= 0x3001 && c <= 0x3003) || (c >= 0x3008 && c <= 0x3011) || (c >= 0x3400 && c <= 0x4DBF) ||
        (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF);
}

/* ---- words and sentences ------------------------------------------------------------------------------------------------------------- */
/* The pieces of one word from ids[n] on; the new count. */
static int wp_word(const Vocabulary *v, const char *word, int length, int characters, int64_t *ids, int n, int most)
{
    char piece[4 * WP_LONGEST_WORD + 3];
    int start = 0, first = n;
    while (start < length && characters <= WP_LONGEST_WORD) {
        int end = length, id = -1;
        for (; end > start; end--) {
            snprintf(piece, sizeof piece, "%s%.*s", start ? "##" : "", end - start, word + start);
            if ((id = wp_find(v, piece)) >= 0)
                break;
        }
        if (id < 0)
            break;
        if (n < most)
            ids[n++] = id;
        start = end;
    }
    if (start == length)
        return n;
    if (first < most)
        ids[first++] = WP_UNKNOWN;
    return first;
}

/* "[CLS]" text "[SEP]", cut to `most` numbers; how many. */
static int wp_encode(const Vocabulary *v, const char *text, int64_t *ids, int most)
{
    char word[4 * WP_LONGEST_WORD + 8];
    int n = 0, length = 0, characters = 0;
    ids[n++] = WP_CLS;
    for (const char *p = text;;) {
        uint32_t c = *p ? wp_next(&p) : 0;
        int alone = c && wp_stands_alone(c);
        if (length && (!c || alone || wp_is_blank(c))) {
            n = wp_word(v, word, length, characters, ids, n, most - 1);
            length = characters = 0;
        }
        if (!c)
            break;
        if (wp_is_blank(c) || wp_is_accent(c))
            continue;
        if (characters < WP_LONGEST_WORD)
            length = (int)(wp_put(word + length, wp_fold(c)) - word);
        characters++;
        if (alone) {
            n = wp_word(v, word, length, characters, ids, n, most - 1);
            length = characters = 0;
        }
    }
    ids[n++] = WP_SEP;
    return n;
}

#endif
