package recipe

import _ "embed"

//go:embed recipe.schema.json
var schema []byte

// Schema is the JSON Schema (draft 2020-12) of a recipe. It covers the form of
// each key; what depends on several keys or on files only Load finds.
func Schema() []byte { return append([]byte(nil), schema...) }
