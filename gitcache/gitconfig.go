package gitcache

import (
	"bytes"
	"strings"
)

// sourceConfig is what of a source's configuration is taken over, as data.
// Everything else in that file, includes above all, is never interpreted.
type sourceConfig struct {
	bare         bool
	sha256       bool
	partialClone bool
	fileMode     string // "" or as written
	ignoreCase   string
	autoCRLF     string
	eol          string
	trustCtime   string
	checkStat    string
}

func parseSourceConfig(text []byte) sourceConfig {
	var c sourceConfig
	eachConfig(text, func(section, key, value string) {
		switch section + "." + key {
		case "core.bare":
			c.bare = isTrue(value)
		case "core.filemode":
			c.fileMode = oneOf(value, "true", "false")
		case "core.ignorecase":
			c.ignoreCase = oneOf(value, "true", "false")
		case "core.autocrlf":
			c.autoCRLF = oneOf(value, "true", "false", "input")
		case "core.eol":
			c.eol = oneOf(value, "lf", "crlf", "native")
		case "core.trustctime":
			c.trustCtime = oneOf(value, "true", "false")
		case "core.checkstat":
			c.checkStat = oneOf(value, "default", "minimal")
		case "extensions.objectformat":
			c.sha256 = strings.EqualFold(value, "sha256")
		case "extensions.partialclone":
			c.partialClone = value != ""
		}
		if strings.HasPrefix(section, "remote ") && key == "promisor" {
			c.partialClone = c.partialClone || isTrue(value)
		}
	})
	return c
}

func isTrue(v string) bool {
	switch strings.ToLower(v) {
	case "true", "yes", "on", "1":
		return true
	}
	return false
}

func oneOf(v string, allowed ...string) string {
	if len(allowed) > 1 && allowed[0] == "true" {
		switch strings.ToLower(v) {
		case "yes", "on", "1":
			v = "true"
		case "no", "off", "0":
			v = "false"
		}
	}
	for _, a := range allowed {
		if strings.EqualFold(v, a) {
			return a
		}
	}
	return ""
}

// eachConfig calls f for each variable of a git config file, git-config(1)
// "Syntax": section is lower case, with " subsection" after it where there is
// one; key is lower case; a key without "=" has the value "true".
func eachConfig(text []byte, f func(section, key, value string)) {
	section := ""
	for len(text) > 0 {
		var line []byte
		line, text = configLine(text)
		line = bytes.TrimLeft(line, " \t")
		for len(line) > 0 && line[0] == '[' {
			end := sectionEnd(line)
			if end < 0 {
				line = nil
				break
			}
			section = sectionName(string(line[1:end]))
			line = bytes.TrimLeft(line[end+1:], " \t")
		}
		if len(line) == 0 || line[0] == '#' || line[0] == ';' || section == "" {
			continue
		}
		key, value, ok := strings.Cut(string(line), "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if !ok {
			key, _, _ = strings.Cut(key, " ")
			value = "true"
		}
		f(section, key, configValue(value))
	}
}

// configLine cuts one logical line: a backslash before the newline goes on.
func configLine(text []byte) (line, rest []byte) {
	for {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return append(line, text...), nil
		}
		part := bytes.TrimSuffix(text[:i], []byte{'\r'})
		text = text[i+1:]
		if !bytes.HasSuffix(part, []byte{'\\'}) || bytes.HasSuffix(part, []byte(`\\`)) {
			return append(line, part...), text
		}
		line = append(line, part[:len(part)-1]...)
	}
}

// sectionEnd finds the "]" that is not inside a quoted subsection.
func sectionEnd(line []byte) int {
	quoted := false
	for i := 1; i < len(line); i++ {
		switch {
		case quoted && line[i] == '\\':
			i++
		case line[i] == '"':
			quoted = !quoted
		case line[i] == ']' && !quoted:
			return i
		}
	}
	return -1
}

func sectionName(s string) string {
	name, sub, ok := strings.Cut(s, " ")
	name = strings.ToLower(strings.TrimSpace(name))
	if !ok {
		return name
	}
	return name + " " + strings.Trim(strings.TrimSpace(sub), `"`)
}

// configValue drops comments outside quotes, quotes and escapes.
func configValue(s string) string {
	var b strings.Builder
	quoted := false
	s = strings.TrimSpace(s)
	keep := 0
	for i := 0; i < len(s); i++ {
		ch := s[i]
		switch {
		case ch == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			default:
				b.WriteByte(s[i])
			}
			keep = b.Len()
		case ch == '"':
			quoted = !quoted
			keep = b.Len()
		case !quoted && (ch == '#' || ch == ';'):
			return b.String()[:keep]
		default:
			b.WriteByte(ch)
			if quoted || (ch != ' ' && ch != '\t') {
				keep = b.Len()
			}
		}
	}
	return b.String()[:keep]
}
