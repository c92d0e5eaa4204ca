package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// kind is a metric's type, by its word in the text format.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// family is one metric, with a series for each value of its label; one without a label
// has the series "". Who uses it holds the lock of its Metrics.
type family struct {
	name, help string
	kind       kind
	label      string
	bounds     []float64      // upper ones of a histogram's buckets, without the last, which has none
	read       func() float64 // asks for the value of a metric that nobody sets; nil for others
	series     map[string]*series
}

// series is a number, or a histogram's observations.
type series struct {
	value   float64 // their sum
	count   uint64
	buckets []uint64
}

func (f *family) of(value string) *series {
	s := f.series[value]
	if s == nil {
		s = &series{buckets: make([]uint64, len(f.bounds))}
		f.series[value] = s
	}
	return s
}

func (f *family) add(value string, n float64) { f.of(value).value += n }
func (f *family) set(value string, n float64) { f.of(value).value = n }

func (f *family) observe(value string, n float64) {
	s := f.of(value)
	s.value += n
	s.count++
	if i, _ := slices.BinarySearch(f.bounds, n); i < len(f.bounds) {
		s.buckets[i]++
	}
}

// write writes the family in Prometheus' text format
// (prometheus.io/docs/instrumenting/exposition_formats).
func (f *family) write(b *bytes.Buffer) {
	if f.read != nil {
		f.set("", f.read())
	}
	if len(f.series) == 0 {
		return
	}
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
	for _, value := range slices.Sorted(maps.Keys(f.series)) {
		s := f.series[value]
		if f.kind != histogram {
			f.line(b, "", value, "", s.value)
			continue
		}
		below := uint64(0)
		for i, bound := range f.bounds {
			below += s.buckets[i]
			f.line(b, "_bucket", value, number(bound), float64(below))
		}
		f.line(b, "_bucket", value, number(math.Inf(1)), float64(s.count))
		f.line(b, "_sum", value, "", s.value)
		f.line(b, "_count", value, "", float64(s.count))
	}
}

// escape is the format's own, of a label's value.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (f *family) line(b *bytes.Buffer, suffix, value, le string, n float64) {
	var labels []string
	if f.label != "" {
		labels = append(labels, f.label+`="`+escape.Replace(value)+`"`)
	}
	if le != "" {
		labels = append(labels, `le="`+le+`"`)
	}
	b.WriteString(f.name + suffix)
	if len(labels) > 0 {
		b.WriteString("{" + strings.Join(labels, ",") + "}")
	}
	b.WriteString(" " + number(n) + "\n")
}

func number(n float64) string {
	if math.IsInf(n, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}
