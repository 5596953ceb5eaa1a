package report

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

var sizeUnits = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// FormatSize writes a size for people: "8 B", "1 KiB", "1.5 GiB", "976.56 KiB". At most two decimals, so that ParseSize gives the size back
// only where it is a round one; TiB is the largest unit.
func FormatSize(b result.Bytes) string {
	if b < 0 {
		return "-" + formatMagnitude(-float64(b))
	}
	return formatMagnitude(float64(b))
}

func formatMagnitude(v float64) string {
	unit := 0
	// Rounded to two decimals first: 1048575 B is "1 MiB", not "1024 KiB".
	for unit < len(sizeUnits)-1 && math.Round(v*100)/100 >= 1024 {
		v /= 1024
		unit++
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) + " " + sizeUnits[unit]
}

const sizeForms = `write a number and K, M, G or T (powers of 1024), such as 8, 64K, 1.5G or "1 MiB"`

// maxSizeText bounds what ParseSize looks at; no size needs more.
const maxSizeText = 40

// ParseSize reads a size in bytes: a decimal number (fractions and 1e9 too), then nothing, B, or K, M, G, T in either case with an optional
// "B" or "iB", all of them powers of 1024 as in nccl-tests. One blank may stand before the unit. A fraction of a byte is cut off where there is
// a unit ("0.3K" is 307) and refused where there is none. Errors name the text and say what is accepted: no number, negative, unknown
// unit, anything after the unit, more than 2^63 − 1 bytes.
func ParseSize(text string) (result.Bytes, error) {
	refuse := func(why string) (result.Bytes, error) {
		shown := text
		if len(shown) > maxSizeText {
			shown = shown[:maxSizeText] + "…"
		}
		return 0, fmt.Errorf("size %q: %s; %s", shown, why, sizeForms)
	}
	s := strings.TrimSpace(text)
	switch {
	case s == "":
		return refuse("empty")
	case len(s) > maxSizeText:
		return refuse("too long")
	case s[0] == '-':
		return refuse("negative")
	}
	number, unit := splitNumber(s)
	if number == "" {
		return refuse("does not begin with a number")
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return refuse(fmt.Sprintf("%q is not a number", number))
	}
	shift, ok := unitShift(strings.TrimPrefix(unit, " "))
	if !ok {
		return refuse(fmt.Sprintf("unknown unit %q", strings.TrimSpace(unit)))
	}
	if shift == 0 && !value.IsInt() {
		return refuse("a fraction of a byte")
	}
	value.Mul(value, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), shift)))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsInt64() {
		return refuse("more than 2^63 − 1 bytes")
	}
	return result.Bytes(whole.Int64()), nil
}

// splitNumber cuts s after its leading decimal number. An exponent has at most two digits: more would be no size, and big.Rat would write it out.
func splitNumber(s string) (number, rest string) {
	i, digits, point := 0, 0, false
	for ; i < len(s); i++ {
		switch {
		case s[i] >= '0' && s[i] <= '9':
			digits++
			continue
		case s[i] == '.' && !point:
			point = true
			continue
		}
		break
	}
	if digits == 0 {
		return "", s
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		j := i + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		from := j
		for j < len(s) && s[j] >= '0' && s[j] <= '9' {
			j++
		}
		if j > from && j-from <= 2 {
			i = j
		}
	}
	return s[:i], s[i:]
}

// unitShift returns the power of two of a unit.
func unitShift(unit string) (uint, bool) {
	u := strings.ToLower(unit)
	if u == "" || u == "b" {
		return 0, true
	}
	i := strings.IndexByte("kmgt", u[0])
	if i < 0 || (u[1:] != "" && u[1:] != "b" && u[1:] != "ib") {
		return 0, false
	}
	return uint(10 * (i + 1)), true
}
