// Passes over float32 matrices for a few positions of a text. Every matrix is stored row by row, without gaps.
// `compiled.py` defines BOUND, the bound of a feature and of the log of what a gate is multiplied by.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define WIDE 16
#else
#define WIDE 8
#endif
typedef float vec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int lanes __attribute__((vector_size(4 * WIDE)));
#define AT(p) (*(const vec *)(p))
// Inlined with constants for the sizes of a tile, so that its loops are unrolled and its sums stay in registers.
#define TILE static inline __attribute__((always_inline)) void

static inline float total(vec v) {
    float sum = 0;
    for (int i = 0; i < WIDE; i++) sum += v[i];
    return sum;
}

TILE dot_tile(const int rows, const int count, long m, long n, const float *w, const float *x, float *y) {
    vec sums[rows * count];
    for (int s = 0; s < rows * count; s++) sums[s] = (vec){0};
    long j = 0;
    for (; j + WIDE <= n; j += WIDE)
        for (int k = 0; k < count; k++)
            for (int i = 0; i < rows; i++) sums[i * count + k] += AT(w + i * n + j) * AT(x + k * n + j);
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < count; k++) {
            float sum = total(sums[i * count + k]);
            for (long r = j; r < n; r++) sum += w[i * n + r] * x[k * n + r];
            y[k * m + i] += sum;
        }
}

static int threads = 1;

void set_threads(long count) { threads = (int)count; }

// Shares the blocks of a large matrix among the threads. Which thread computes a number does not change it.
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL(size) PRAGMA(omp parallel for num_threads(threads) schedule(static) if (threads > 1 && (size) > 1 << 18))

static long least(long a, long b) { return a < b ? a : b; }

// y (count, m) += x (count, n) w^T, of w (m, n).
void add_dots(long m, long n, long count, const float *w, const float *x, float *y) {
    PARALLEL(m * n)
    for (long first = 0; first < m; first += 64) {
        long i = first, last = least(first + 64, m);
        if (count == 1)
            for (; i + 4 <= last; i += 4) dot_tile(4, 1, m, n, w + i * n, x, y + i);
        for (; i + 2 <= last; i += 2) {
            long k = 0;
            for (; k + 5 <= count; k += 5) dot_tile(2, 5, m, n, w + i * n, x + k * n, y + k * m + i);
            for (; k + 2 <= count; k += 2) dot_tile(2, 2, m, n, w + i * n, x + k * n, y + k * m + i);
            for (; k < count; k++) dot_tile(2, 1, m, n, w + i * n, x + k * n, y + k * m + i);
        }
        for (; i < last; i++)
            for (long k = 0; k < count; k++) dot_tile(1, 1, m, n, w + i * n, x + k * n, y + k * m + i);
    }
}

// Columns `from` to `to` of the product.
TILE row_tile(const int rows, const int count, long m, long n, long from, long to, const float *w, const float *x, float *y) {
    long j = from;
    for (; j + WIDE <= to; j += WIDE)
        for (int k = 0; k < count; k++) {
            vec sum = AT(y + k * n + j);
            for (int i = 0; i < rows; i++) sum += x[k * m + i] * AT(w + i * n + j);
            *(vec *)(y + k * n + j) = sum;
        }
    for (; j < to; j++)
        for (int k = 0; k < count; k++)
            for (int i = 0; i < rows; i++) y[k * n + j] += x[k * m + i] * w[i * n + j];
}

// y (count, n) = x (count, m) w, of w (m, n). `part` (count, n) takes the sums of 256 rows, which are then added to y: a sum of
// thousands of numbers one after another would lose digits.
void rows_of(long m, long n, long count, const float *w, const float *x, float *y, float *part) {
    long wide = (n / threads / WIDE + 1) * WIDE;
    PARALLEL(m * n)
    for (long from = 0; from < n; from += wide) {
        long to = least(from + wide, n);
        for (long k = 0; k < count; k++) memset(y + k * n + from, 0, 4 * (to - from));
        for (long first = 0; first < m; first += 256) {
            long i = first, last = least(first + 256, m);
            for (long k = 0; k < count; k++) memset(part + k * n + from, 0, 4 * (to - from));
            for (; i + 8 <= last; i += 8) {
                long k = 0;
#define ROWS(count) row_tile(8, count, m, n, from, to, w + i * n, x + k * m + i, part + k * n)
                for (; k + 5 <= count; k += 5) ROWS(5);
                for (; k + 2 <= count; k += 2) ROWS(2);
                for (; k < count; k++) ROWS(1);
            }
            for (; i < last; i++)
                for (long k = 0; k < count; k++) row_tile(1, 1, m, n, from, to, w + i * n, x + k * m + i, part + k * n);
            for (long k = 0; k < count; k++)
                for (long j = from; j < to; j++) y[k * n + j] += part[k * n + j];
        }
    }
}

static inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// A layer of u units over `steps` steps of `batch` texts. `inputs` (steps, batch, 4u) holds the input's share of the gates, and is
// changed. hidden and values (steps + 1, batch, u) begin with h_0 and c_0; squashed (steps, batch, u) gets tanh(c), and gates
// (steps, batch, 4u) i, f, g, o.
void lstm_forward(long steps, long batch, long u, const float *w, float *inputs, float *hidden, float *values, float *squashed,
                  float *gates) {
    for (long t = 0; t < steps; t++, inputs += batch * 4 * u) {
        add_dots(4 * u, u, batch, w, hidden, inputs);
        for (long b = 0; b < batch; b++, hidden += u, values += u, squashed += u, gates += 4 * u) {
            const float *z = inputs + b * 4 * u;
            for (long j = 0; j < u; j++) {
                float i = sigmoid(z[j]), f = sigmoid(z[u + j]), g = tanhf(z[2 * u + j]), o = sigmoid(z[3 * u + j]);
                float c = f * values[j] + i * g, s = tanhf(c);
                gates[j] = i, gates[u + j] = f, gates[2 * u + j] = g, gates[3 * u + j] = o;
                values[batch * u + j] = c, squashed[j] = s, hidden[batch * u + j] = o * s;
            }
        }
    }
}

// Its backward pass: from the gradients of the outputs, d_output (steps, batch, u), and of the last h and c, d_h and d_c (batch, u),
// to those of the gates before their squashing, d_gates (steps, batch, 4u), and of h_0 and c_0, in place. `part` (batch, u) is
// memory to work in.
void lstm_backward(long steps, long batch, long u, const float *w, const float *values, const float *squashed,
                   const float *gates, const float *d_output, float *d_h, float *d_c, float *d_gates, float *part) {
    long size = batch * u;
    for (long t = steps - 1; t >= 0; t--) {
        for (long b = 0; b < batch; b++) {
            long at = b * u, row = t * size + at;
            const float *gate = gates + 4 * row, *before = values + row, *s = squashed + row, *d = d_output + row;
            float *out = d_gates + 4 * row;
            for (long j = 0; j < u; j++) {
                float i = gate[j], f = gate[u + j], g = gate[2 * u + j], o = gate[3 * u + j];
                float dh = d_h[at + j] + d[j], dc = d_c[at + j] + dh * o * (1 - s[j] * s[j]);
                out[j] = dc * g * i * (1 - i), out[u + j] = dc * before[j] * f * (1 - f);
                out[2 * u + j] = dc * i * (1 - g * g), out[3 * u + j] = dh * s[j] * o * (1 - o);
                d_c[at + j] = dc * f;
            }
        }
        rows_of(4 * u, u, batch, w, d_gates + t * 4 * size, d_h, part);
    }
}

typedef struct {
    float rate, epsilon, decay;
} Step;

static inline void displace(vec g, long at, const float *rms, const float *still, float *delta, float *moved, Step step) {
    vec r = AT(rms + at), d = AT(delta + at), share = r * step.decay, one = (vec){0} + 1.0f;
    lanes below = share < one;
    share = (vec)(((lanes)share & below) | ((lanes)one & ~below));
    d = d - d * share - g * (step.rate / (r + step.epsilon));
    *(vec *)(delta + at) = d;
    *(vec *)(moved + at) = AT(still + at) + d;
}

TILE displace_tile(const int rows, const int wide, long n, long count, const float *left, const float *right, const float *rest,
                   long at, const float *rms, const float *still, float *delta, float *moved, Step step) {
    vec sums[rows * wide];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++) sums[i * wide + v] = rest ? AT(rest + i * n + v * WIDE) : (vec){0};
    for (long k = 0; k < count; k++)
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < wide; v++) sums[i * wide + v] += left[i * count + k] * AT(right + k * n + v * WIDE);
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++) displace(sums[i * wide + v], at + i * n + v * WIDE, rms, still, delta, moved, step);
}

TILE displace_rows(const int rows, long n, long count, const float *left, const float *right, const float *rest, long at,
                   const float *rms, const float *still, float *delta, float *moved, Step step) {
    long j = 0;
#define GO(wide)                                                                                                                \
    for (; j + wide * WIDE <= n; j += wide * WIDE)                                                                              \
        displace_tile(rows, wide, n, count, left, right + j, rest ? rest + j : 0, at + j, rms, still, delta, moved, step);
    GO(4) GO(1)
    for (; j < n; j++)
        for (int i = 0; i < rows; i++) {
            float g = rest ? rest[i * n + j] : 0, share;
            for (long k = 0; k < count; k++) g += left[i * count + k] * right[k * n + j];
            long a = at + i * n + j;
            share = fminf(rms[a] * step.decay, 1);
            delta[a] = delta[a] - delta[a] * share - g * (step.rate / (rms[a] + step.epsilon));
            moved[a] = still[a] + delta[a];
        }
}

// delta <- (1 - min(1, decay rms)) delta - rate g / (rms + epsilon) and moved = still + delta, of matrices (m, n). The gradient g
// is left (m, count) right (count, n), plus rows (extra, n) at these numbers in rising order, plus rest (m, n) unless that is null.
void displace_matrix(long m, long n, long count, const float *left, const float *right, long extra, const int64_t *numbers,
                     const float *rows, const float *rest, const float *rms, const float *still, float *delta, float *moved,
                     float rate, float epsilon, float decay) {
    Step step = {rate, epsilon, decay};
    PARALLEL(m * n)
    for (long first = 0; first < m; first += 128) {
        long i = first, last = least(first + 128, m), next = 0;
        float *sum = 0;
        while (next < extra && numbers[next] < first) next++;
        while (i < last) {
            const float *other = rest ? rest + i * n : 0;
#define MOVE(count_rows, whole) \
    displace_rows(count_rows, n, count, left + i * count, right, whole, i * n, rms, still, delta, moved, step)
            if (next < extra && numbers[next] == i) {
                if (!sum) sum = malloc(4 * n);
                if (other) memcpy(sum, other, 4 * n);
                else memset(sum, 0, 4 * n);
                for (; next < extra && numbers[next] == i; next++)
                    for (long j = 0; j < n; j++) sum[j] += rows[next * n + j];
                MOVE(1, sum);
                i++;
            } else if (i + 2 <= last && !(next < extra && numbers[next] == i + 1)) {
                MOVE(2, other);
                i += 2;
            } else {
                MOVE(1, other);
                i++;
            }
        }
        free(sum);
    }
}

static inline vec pick(lanes where, vec a, vec b) { return (vec)(((lanes)a & where) | ((lanes)b & ~where)); }
static inline vec within(vec v, float low, float high) {
    vec a = (vec){0} + low, b = (vec){0} + high;
    v = pick(v < a, a, v);
    return pick(v > b, b, v);
}
static inline vec magnitude(vec v) { return (vec)((lanes)v & 0x7fffffff); }
static inline vec sign(vec v) {
    vec one = (vec){0} + 1.0f, zero = {0};
    return pick(v > zero, one, pick(v < zero, -one, zero));
}

// Vectors that a function takes together, so that the core need not wait for one operation after another.
#define GROUP 4
#define EACH for (int v = 0; v < GROUP; v++)

// x <- exp(x) of |x| < 87: 2^k exp(r), with |r| at most log(2) / 2, whose series ends where a float does.
TILE exponential(vec *x) {
    const float round = 12582912.0f;  // a sum with it has no digits after the point
    const float series[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    vec k[GROUP], r[GROUP], sum[GROUP];
    EACH k[v] = (x[v] * 1.44269504f + round) - round;
    EACH r[v] = x[v] - k[v] * 0.693359375f + k[v] * 2.12194440e-4f;
    EACH sum[v] = (vec){0} + 1.0f / 720;
    for (int i = 0; i < 6; i++) EACH sum[v] = sum[v] * r[v] + series[i];
    EACH x[v] = (vec)((lanes)sum[v] + (__builtin_convertvector(k[v], lanes) << 23));
}

// x <- log(x) of a normal x > 0: k log(2) + log(m), with m from sqrt(1 / 2) to sqrt(2) and the series of log((1 + s) / (1 - s)).
TILE logarithm(vec *x) {
    const float series[] = {2.0f / 5, 2.0f / 3, 2};
    lanes k[GROUP];
    vec s[GROUP], sum[GROUP];
    EACH k[v] = ((lanes)x[v] - 0x3f3504f3) >> 23;
    EACH s[v] = (vec)((lanes)x[v] - (k[v] << 23));
    EACH s[v] = (s[v] - 1.0f) / (s[v] + 1.0f);
    EACH sum[v] = (vec){0} + 2.0f / 7;
    for (int i = 0; i < 3; i++) EACH sum[v] = sum[v] * (s[v] * s[v]) + series[i];
    EACH x[v] = __builtin_convertvector(k[v], vec) * 0.693147181f + s[v] * sum[v];
}

// The network of a meta-learner: 6 features of a weight to `hidden` units (ReLU), and to 2 or 3 gates.
typedef struct {
    long hidden;
    const float *input, *bias, *output, *output_bias;
} Network;
// How features are scaled: the bounds of |gradient| / (RMS + epsilon), the mean and deviation of its log, and a typical displacement.
typedef struct {
    float low, high, mean, deviation, displacement;
} Scales;

#define SPAN (GROUP * WIDE)

// The displacements of SPAN weights, as in `gated_displace`.
TILE gate_span(const int outputs, const Network *net, const Scales *scales, Step step, const float *grad, const float *rms,
               const float *log_rms, const float *log_fisher, const float *still, float *delta, float *moved) {
    vec g[GROUP], d[GROUP], r[GROUP], scale[GROUP], features[6][GROUP], gates[3][GROUP];
    EACH g[v] = AT(grad + v * WIDE), d[v] = AT(delta + v * WIDE), r[v] = AT(rms + v * WIDE), scale[v] = r[v] + step.epsilon;
    EACH features[0][v] = within(magnitude(g[v] / scale[v]), scales->low, scales->high);
    logarithm(features[0]);
    EACH features[0][v] = (features[0][v] - scales->mean) / scales->deviation;
    EACH features[1][v] = sign(g[v]);
    EACH features[2][v] = magnitude(d[v] / within(scales->displacement * r[v] / scale[v], 1e-30f, INFINITY));
    EACH features[2][v] = within(features[2][v], expf(-BOUND), expf(BOUND));
    logarithm(features[2]);
    EACH features[3][v] = sign(d[v]) * features[1][v];
    EACH features[4][v] = AT(log_rms + v * WIDE);
    EACH features[5][v] = AT(log_fisher + v * WIDE);
    for (int o = 0; o < outputs; o++) EACH gates[o][v] = (vec){0} + net->output_bias[o];
    for (long h = 0; h < net->hidden; h++) {
        vec sum[GROUP];
        EACH sum[v] = (vec){0} + net->bias[h];
        for (int f = 0; f < 6; f++) EACH sum[v] += net->input[6 * h + f] * features[f][v];
        EACH sum[v] = pick(sum[v] > (vec){0}, sum[v], (vec){0});
        for (int o = 0; o < outputs; o++) EACH gates[o][v] += net->output[o * net->hidden + h] * sum[v];
    }
    for (int o = 0; o < outputs; o++) {  // exp(BOUND tanh(o / BOUND)); exactly 1 at 0
        EACH gates[o][v] = within(gates[o][v] * (-2 / BOUND), -80, 80);
        exponential(gates[o]);
        EACH gates[o][v] = 2 * BOUND / (1.0f + gates[o][v]) - BOUND;
        exponential(gates[o]);
    }
    EACH {
        vec decay = within(r[v] * step.decay, 0, 1), share = within(decay * gates[1][v], 0, 1);
        vec theta_0 = AT(still + v * WIDE);
        d[v] -= d[v] * share + g[v] * gates[0][v] * (step.rate / scale[v]);
        if (outputs == 3) d[v] += (within(decay * gates[2][v], 0, 1) - share) * theta_0;
        *(vec *)(delta + v * WIDE) = d[v];
        *(vec *)(moved + v * WIDE) = theta_0 + d[v];
    }
}

// delta <- (1 - r) delta - i grad + (z - r) still and moved = still + delta, of n weights. A network of their features multiplies
// i = rate / (rms + epsilon) and r = z = min(1, decay rms); r and z are bounded by 1 again. With 2 outputs z remains r.
void gated_displace(long n, const float *grad, const float *rms, const float *log_rms, const float *log_fisher, const float *still,
                    float *delta, float *moved, long hidden, long outputs, const float *input, const float *bias,
                    const float *output, const float *output_bias, float low, float high, float mean, float deviation,
                    float displacement, float rate, float epsilon, float decay) {
    Network net = {hidden, input, bias, output, output_bias};
    Scales scales = {low, high, mean, deviation, displacement};
    Step step = {rate, epsilon, decay};
    PARALLEL(16 * n)  // a weight costs that of many in a product
    for (long first = 0; first < n; first += SPAN) {
        long size = least(SPAN, n - first);
        float rest[7][SPAN] = {0};  // the last weights, in the same arithmetic
        const float *sources[] = {grad, rms, log_rms, log_fisher, still, delta}, *from[6];
        for (int i = 0; i < 6; i++)
            from[i] = size == SPAN ? sources[i] + first : memcpy(rest[i], sources[i] + first, 4 * size);
        float *d = size == SPAN ? delta + first : rest[5], *m = size == SPAN ? moved + first : rest[6];
#define GATE(outputs) gate_span(outputs, &net, &scales, step, from[0], from[1], from[2], from[3], from[4], d, m)
        if (outputs == 3) GATE(3);
        else GATE(2);
        if (size < SPAN) memcpy(delta + first, d, 4 * size), memcpy(moved + first, m, 4 * size);
    }
}

// Cumulative shares (rows, types + 1) of non-negative p (rows, types): the sums of floor(scale p) + 1, with a scale for every row.
void cumulate_shares(long rows, long types, const float *p, const float *scale, int64_t *shares) {
    for (long row = 0; row < rows; row++, p += types, shares += types + 1) {
        int64_t sum = shares[0] = 0;
        for (long i = 0; i < types; i++) shares[i + 1] = sum += (int64_t)(scale[row] * p[i]) + 1;
    }
}
