package policy

import (
	"path"
	"strings"
)

// maxTools is how many tools one policy names.
const maxTools = 256

// ValidTool tells whether s is a program's name as a policy may have it.
func ValidTool(s string) bool {
	if s == "[" {
		return true
	}
	if s == "" || len(s) > 128 || s[0] == '-' || s[0] == '.' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._+-", rune(c)) {
			return false
		}
	}
	return true
}

// ValidateTools checks a policy's tools under its root profile. Each is a program's
// name or the absolute path of a file or directory; which there are is the host's to
// say.
func ValidateTools(tools []string, root RootProfile) error {
	const op = "policy.tools"
	if len(tools) > maxTools {
		return Errorf(CodePolicyInvalid, op, "more than %d tools are named", maxTools)
	}
	if _, image := root.Image(); image && len(tools) > 0 {
		return Errorf(CodePolicyInvalid, op, "tools are the host's, and the root is an image's").
			WithHint("Leave tools out and import an image that has these programs only, or take the root system or minimal.")
	}
	seen := make(map[string]bool, len(tools))
	for _, t := range tools {
		isPath := path.IsAbs(t) && path.Clean(t) == t && t != "/" && len(t) < 4000 && !strings.ContainsRune(t, 0)
		if !isPath && !ValidTool(t) {
			return Errorf(CodePolicyInvalid, op, "%q is neither a program's name nor a clean absolute path", Printable(t))
		}
		if seen[t] {
			return Errorf(CodePolicyInvalid, op, "the tool %s is named twice", Printable(t))
		}
		seen[t] = true
	}
	return nil
}
