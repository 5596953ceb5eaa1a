package evidence

import (
	"bytes"
	"time"
)

// Times without a zone are taken as UTC: what matters is how far apart they are.

// stampLen is how long the time at the beginning of b is: "2026-01-02 03:04:05,123", "2026-01-02T03:04:05.123Z", "2026/01/02 03:04:05"; 0: none.
func stampLen(b []byte) int {
	const least = len("2026-01-02 03:04:05")
	if len(b) < least || b[4] != '-' && b[4] != '/' || b[7] != b[4] || b[10] != ' ' && b[10] != 'T' && b[10] != '_' || b[13] != ':' || b[16] != ':' {
		return 0
	}
	n := least
	if n < len(b) && (b[n] == '.' || b[n] == ',') {
		n++
		for n < len(b) && b[n]-'0' < 10 {
			n++
		}
	}
	if n < len(b) && b[n] == 'Z' {
		return n + 1
	}
	if n+5 <= len(b) && (b[n] == '+' || b[n] == '-') && b[n+1]-'0' < 10 {
		n++
		for n < len(b) && (b[n]-'0' < 10 || b[n] == ':') {
			n++
		}
	}
	return n
}

// stampTime reads a time in any of the forms that stand in brackets or at the beginning of lines.
func stampTime(b []byte, year int) (time.Time, bool) {
	if n := stampLen(b); n > 0 {
		return numericTime(b[:n])
	}
	if len(b) >= 24 && b[3] == ' ' && b[7] == ' ' { // dmesg -T
		for _, form := range []string{"Mon Jan _2 15:04:05 2006", "Mon Jan 2 15:04:05 2006"} {
			if t, err := time.Parse(form, string(bytes.TrimSpace(b))); err == nil {
				return t, true
			}
		}
	}
	if t, _, ok := syslogTime(b, year); ok {
		return t, true
	}
	return time.Time{}, false
}

// numericTime reads what stampLen has measured.
func numericTime(b []byte) (time.Time, bool) {
	year, month, day := shortNumber(b[:4]), shortNumber(b[5:7]), shortNumber(b[8:10])
	hour, minute, second := shortNumber(b[11:13]), shortNumber(b[14:16]), shortNumber(b[17:19])
	if year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 {
		return time.Time{}, false
	}
	rest, nanos := b[19:], 0
	if len(rest) > 0 && (rest[0] == '.' || rest[0] == ',') {
		nanos, rest = fraction(rest[1:])
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	if len(rest) >= 3 && (rest[0] == '+' || rest[0] == '-') {
		minutes := shortNumber(rest[1:3]) * 60
		if zone := rest[3:]; len(zone) >= 2 {
			minutes += max(shortNumber(zone[len(zone)-2:]), 0)
		}
		if rest[0] == '+' {
			minutes = -minutes
		}
		t = t.Add(time.Duration(minutes) * time.Minute)
	}
	return t, true
}

// fraction reads the digits behind a second's point as nanoseconds.
func fraction(b []byte) (nanos int, rest []byte) {
	i := 0
	for scale := 100_000_000; i < len(b) && b[i]-'0' < 10; i++ {
		nanos += int(b[i]-'0') * scale
		scale /= 10
	}
	return nanos, b[i:]
}

// syslogTime reads "Jan  2 03:04:05" at the beginning of b, which has no year.
func syslogTime(b []byte, year int) (t time.Time, rest []byte, ok bool) {
	const size = len("Jan  2 03:04:05")
	if len(b) < size || b[3] != ' ' || b[6] != ' ' || b[9] != ':' || b[12] != ':' {
		return t, b, false
	}
	t, err := time.Parse("Jan _2 15:04:05", string(b[:size]))
	if err != nil {
		return t, b, false
	}
	return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC), skipBlank(b[size:]), true
}

// glogTime reads "1129 17:03:04.401000 …": month and day without a year, the month without a leading zero.
func glogTime(b []byte, year int) time.Time {
	i := 0
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	if i < 3 || i > 4 || len(b) < i+9 || b[i] != ' ' || b[i+3] != ':' || b[i+6] != ':' {
		return time.Time{}
	}
	md := shortNumber(b[:i])
	hour, minute, second := shortNumber(b[i+1:i+3]), shortNumber(b[i+4:i+6]), shortNumber(b[i+7:i+9])
	month, day := md/100, md%100
	if month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60 || hour < 0 || minute < 0 || second < 0 {
		return time.Time{}
	}
	nanos := 0
	if j := i + 9; j < len(b) && b[j] == '.' {
		nanos, _ = fraction(b[j+1:])
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
}

// shortNumber is a short number, -1 if it is something else.
func shortNumber(b []byte) int {
	n := 0
	for _, c := range b {
		if c-'0' > 9 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}
