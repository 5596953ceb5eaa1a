/* The generators of verify_kernels.h, which includes this twice: for words of
 * 32 bits, which also serve the narrower types, and of 64 bits. There is no
 * include guard for that reason. */
#if CPV_BITS_OF_WORD == 32
#define CPV_W uint32_t
#define CPV(name) cpv_##name##32
#else
#define CPV_W uint64_t
#define CPV(name) cpv_##name##64
#endif

/* The hash that a result is drawn from, uniform over the word. */
CPV_FN CPV_W CPV(draw)(struct cpv_hash h)
{
#if CPV_BITS_OF_WORD == 32
	return h.a;
#else
	return (uint64_t)h.a << 32 | h.b;
#endif
}

/* The hidden value a(t), uniform over the word. */
CPV_FN CPV_W CPV(hidden)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	uint32_t v = cpv_mix(h.b ^ (t * 0x9e3779b9u + s->key3));
#if CPV_BITS_OF_WORD == 32
	return v;
#else
	return (uint64_t)v << 32 | cpv_mix(h.a ^ (t * 0x85ebca77u + s->key4));
#endif
}

/* Uniform below limit, which is not 0, from a uniform word; *rest is what the
 * word has left for another draw. */
CPV_FN CPV_W CPV(below)(CPV_W h, CPV_W limit, uint32_t *rest)
{
#if CPV_BITS_OF_WORD == 32
	*rest = h * limit;
	return cpv_mulhi32(h, limit);
#else
	*rest = (uint32_t)((h * limit) >> 32);
	return cpv_mulhi64(h, limit);
#endif
}

/* Uniform in 0..last. */
CPV_FN CPV_W CPV(upTo)(CPV_W h, CPV_W last)
{
	uint32_t rest;
	if (last == ~(CPV_W)0)
		return h;
	return CPV(below)(h, last + 1, &rest);
}

/* Bits of (-1)^negative * magnitude * 2^k; exact, normal and in range by the
 * plan, magnitude <= 2^p. */
CPV_FN CPV_W CPV(pack)(const struct cpv_plan *s, int negative, CPV_W magnitude, int k)
{
	CPV_W top = magnitude | (magnitude == 0);
	int e = CPV_BITS_OF_WORD - 1 - CPV(normalise)(&top) + k;
	/* The significand's hidden bit adds one to the exponent field. */
	CPV_W bits = (CPV_W)(e + s->bias - 1) << (s->p - 1);
	bits += top >> (CPV_BITS_OF_WORD - s->p);
	bits |= CPV(when)(negative, (CPV_W)s->sign);
	return CPV(when)(magnitude != 0, bits);
}

/* ---- integers and source data ------------------------------------------- */

CPV_FN CPV_W CPV(bits)(const struct cpv_plan *s, struct cpv_hash h)
{
	CPV_W v = (CPV(draw)(h) >> (CPV_BITS_OF_WORD - 8 * s->bytes)) | (CPV_W)s->setBits;
	return v ^ CPV(when)((v & (CPV_W)s->avoid) == (CPV_W)s->avoid, (CPV_W)s->flip);
}

CPV_FN CPV_W CPV(mask)(const struct cpv_plan *s)
{
	return ~(CPV_W)0 >> (CPV_BITS_OF_WORD - 8 * s->bytes);
}

CPV_FN CPV_W CPV(intSumShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	CPV_W v = CPV(hidden)(s, h, t) - CPV(hidden)(s, h, cpv_next(t, s->n));
	v <<= s->doubled;
	v += CPV(when)(t == 0, CPV(bits)(s, h));
	return v & CPV(mask)(s);
}

CPV_FN CPV_W CPV(intProdShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	CPV_W v = CPV(hidden)(s, h, t) | 1;
	v *= CPV(inverse)(CPV(hidden)(s, h, cpv_next(t, s->n)) | 1);
	v *= CPV(when)(t == 0, CPV(bits)(s, h) - 1) + 1;
	return v & CPV(mask)(s);
}

/* A key on the losing side of the winner's, in 0..top. Smaller loses, so for
 * min the scale is turned round. */
CPV_FN CPV_W CPV(loser)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t, CPV_W winner)
{
	CPV_W top = (CPV_W)s->top, v = s->wantMin ? top - winner : winner;
	uint32_t rest;
	v = CPV(below)(CPV(hidden)(s, h, t), v, &rest);
	return s->wantMin ? top - v : v;
}

CPV_FN CPV_W CPV(intOrderShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	CPV_W flip = (CPV_W)s->sign, v = CPV(bits)(s, h) ^ flip;
	CPV_W other = CPV(loser)(s, h, t, v);
	return other ^ CPV(when)(t == 0, other ^ v) ^ flip;
}

CPV_FN CPV_W CPV(intAvg)(const struct cpv_plan *s, struct cpv_hash h)
{
	uint32_t rest;
	return CPV(below)(CPV(draw)(h), (CPV_W)s->top + 1, &rest);
}

/* c + a(t) - a(t+1) with 0 <= a <= c is never negative. c is below the type's
 * largest number, so that c + 1 is a limit. */
CPV_FN CPV_W CPV(intAvgShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	uint32_t unused;
	CPV_W c = CPV(intAvg)(s, h);
	CPV_W v = c + CPV(below)(CPV(hidden)(s, h, t), c + 1, &unused);
	CPV_W room = (CPV_W)s->spread - c * s->n, rest = s->n - 1;
	v -= CPV(below)(CPV(hidden)(s, h, cpv_next(t, s->n)), c + 1, &unused);
	rest = room < rest ? room : rest;
	rest &= -(CPV_W)(cpv_third(s, h) & 1);
	return v + CPV(when)(t == 0, rest);
}

/* ---- floats -------------------------------------------------------------- */

/* The sum's integer, as an offset from -Y, and the common scale. */
CPV_FN CPV_W CPV(sumDraw)(const struct cpv_plan *s, struct cpv_hash h, int *k)
{
	uint32_t rest;
	CPV_W v = CPV(below)(CPV(draw)(h), 2 * (CPV_W)s->top + 1, &rest);
	*k = s->kMin + (int)cpv_mulhi32(rest, s->kCount);
	return v;
}

/* pack() of the integer plus - minus. */
CPV_FN CPV_W CPV(packDifference)(const struct cpv_plan *s, CPV_W plus, CPV_W minus, int k)
{
	int negative = plus < minus;
	CPV_W turn = CPV(when)(negative, ~(CPV_W)0);
	return CPV(pack)(s, negative, ((plus - minus) ^ turn) - turn, k);
}

CPV_FN CPV_W CPV(floatSum)(const struct cpv_plan *s, struct cpv_hash h)
{
	int k;
	CPV_W v = CPV(sumDraw)(s, h, &k);
	return CPV(packDifference)(s, v, (CPV_W)s->top, k - s->kDown);
}

CPV_FN CPV_W CPV(floatSumShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	int k;
	CPV_W v = CPV(sumDraw)(s, h, &k);
	CPV_W plus = CPV(upTo)(CPV(hidden)(s, h, t), (CPV_W)s->spread);
	CPV_W minus = CPV(upTo)(CPV(hidden)(s, h, cpv_next(t, s->parts)), (CPV_W)s->spread);
	plus += CPV(when)(t == 0, v);
	minus += CPV(when)(t == 0, (CPV_W)s->top);
	return CPV(when)(t < s->parts, CPV(packDifference)(s, plus, minus, k - s->halved));
}

/* Sign (as 0 or 1) and significand of a product. */
CPV_FN CPV_W CPV(prodDraw)(const struct cpv_plan *s, struct cpv_hash h, uint32_t *negative)
{
	CPV_W v = h.a;
	*negative = h.a & 1;
#if CPV_BITS_OF_WORD == 64
	v = v << 32 | cpv_third(s, h);
#endif
	return (CPV_W)1 << (s->p - 1) | v >> (CPV_BITS_OF_WORD - s->p + 1);
}

CPV_FN CPV_W CPV(floatProd)(const struct cpv_plan *s, struct cpv_hash h)
{
	uint32_t negative;
	CPV_W v = CPV(prodDraw)(s, h, &negative);
	int k = cpv_prodExp(s, h, 0) + cpv_prodExp(s, h, 1) + cpv_prodExp(s, h, 2) + cpv_prodExp(s, h, 3);
	return CPV(pack)(s, (int)negative, v, k + 1 - s->p);
}

CPV_FN CPV_W CPV(floatProdShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	uint32_t sign = cpv_hidden32(s, h, t) ^ cpv_hidden32(s, h, cpv_next(t, s->n));
	uint32_t negative;
	CPV_W v = CPV(prodDraw)(s, h, &negative);
	int k = cpv_prodExp(s, h, t);
	/* The others have the significand 1. */
	v = t == 0 ? v : (CPV_W)1 << (s->p - 1);
	return CPV(pack)(s, (int)(sign >> 31 ^ (negative & (t == 0))), v, k + 1 - s->p);
}

/* Keys 0..2R are -R..R; a magnitude of 1 is the smallest normal value. */
CPV_FN CPV_W CPV(fromKey)(const struct cpv_plan *s, CPV_W key)
{
	CPV_W r = (CPV_W)(s->top / 2), base = ((CPV_W)1 << (s->p - 1)) - 1;
	CPV_W turn = CPV(when)(key < r, ~(CPV_W)0);
	CPV_W bits = base + (((key - r) ^ turn) - turn);
	return CPV(when)(key != r, bits | (turn & (CPV_W)s->sign));
}

CPV_FN CPV_W CPV(floatOrderShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	CPV_W key = CPV(upTo)(CPV(draw)(h), (CPV_W)s->top);
	CPV_W other = CPV(loser)(s, h, t, key);
	return CPV(fromKey)(s, other ^ CPV(when)(t == 0, other ^ key));
}

/* Significand of one of the two non-zero inputs of an average. */
CPV_FN CPV_W CPV(pairDraw)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	CPV_W v = t == 0 ? h.a : h.b;
#if CPV_BITS_OF_WORD == 64
	v = v << 32 | cpv_mix((uint32_t)v + s->key3);
#endif
	return (CPV_W)1 << (s->p - 1) | v >> (CPV_BITS_OF_WORD - s->p + 1);
}

CPV_FN CPV_W CPV(pairShare)(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	return CPV(when)(t <= 1, CPV(pack)(s, 0, CPV(pairDraw)(s, h, t), cpv_pairScale(s, h)));
}

CPV_FN CPV_W CPV(pairSum)(const struct cpv_plan *s, struct cpv_hash h)
{
	return CPV(pairDraw)(s, h, 0) + CPV(pairDraw)(s, h, 1);
}

/* Only a pair average has a tolerance. Its results are positive, so a step is
 * a step of the bit pattern; sign bits and NaN are far away. */
CPV_FN int CPV(pairRight)(const struct cpv_plan *s, uint64_t index, CPV_W got)
{
	struct cpv_hash h = cpv_hashOf(s, index);
	CPV_W sum = CPV(pairSum)(s, h);
	int k = cpv_pairScale(s, h);
	if (cpv_near(got, cpv_pairMean(s, sum, k)))
		return 1;
	return s->recipExp != 0 && cpv_near(got, cpv_pairScaled(s, sum, k));
}

CPV_FN CPV_W CPV(uniform)(const struct cpv_plan *s, struct cpv_hash h)
{
	uint32_t rest;
	CPV_W v = (CPV_W)s->top + CPV(below)(CPV(draw)(h), (CPV_W)s->spread, &rest);
	return v | CPV(when)((int)(rest >> 31), (CPV_W)s->sign);
}

/* ---- dispatch; kind is a constant wherever speed matters ------------------ */

CPV_FN CPV_W CPV(input)(const struct cpv_plan *s, uint64_t index, int kind)
{
	struct cpv_hash h = cpv_hashOf(s, index);
	uint32_t t;
	if (kind == CPV_BITS)
		return CPV(bits)(s, h);
	if (kind == CPV_FUNIFORM)
		return CPV(uniform)(s, h);
	t = cpv_renumber(s, h);
	switch (kind) {
	case CPV_ISUM:
		return CPV(intSumShare)(s, h, t);
	case CPV_IPROD:
		return CPV(intProdShare)(s, h, t);
	case CPV_IORDER:
		return CPV(intOrderShare)(s, h, t);
	case CPV_IAVG:
		return CPV(intAvgShare)(s, h, t);
	case CPV_FSUM:
		return CPV(floatSumShare)(s, h, t);
	case CPV_FPROD:
		return CPV(floatProdShare)(s, h, t);
	case CPV_FORDER:
		return CPV(floatOrderShare)(s, h, t);
	default:
		return CPV(pairShare)(s, h, t);
	}
}

CPV_FN CPV_W CPV(expected)(const struct cpv_plan *s, uint64_t index, int kind)
{
	struct cpv_hash h = cpv_hashOf(s, index);
	switch (kind) {
	case CPV_IAVG:
		return CPV(intAvg)(s, h);
	case CPV_FSUM:
		return CPV(floatSum)(s, h);
	case CPV_FPROD:
		return CPV(floatProd)(s, h);
	case CPV_FORDER:
		return CPV(fromKey)(s, CPV(upTo)(CPV(draw)(h), (CPV_W)s->top));
	case CPV_FPAIR:
		return (CPV_W)cpv_pairMean(s, CPV(pairSum)(s, h), cpv_pairScale(s, h));
	default:
		return CPV(bits)(s, h);
	}
}

#undef CPV_W
#undef CPV
