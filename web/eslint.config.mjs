import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/**", "build/**", "node_modules/**"] },
  {
    files: ["{client,grid,edit,past,alerts,chart,perspective,board,notebook}/**/*.ts"],
    extends: [...tseslint.configs.strictTypeChecked, ...tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      "max-lines": ["error", { max: 600 }],
      "max-lines-per-function": ["error", { max: 70 }],
      "max-params": ["error", { max: 3 }],
      complexity: ["error", { max: 16 }],
      "@typescript-eslint/consistent-indexed-object-style": "off", // a record cannot hold itself
      eqeqeq: "error",
      "no-restricted-syntax": [
        "error",
        { selector: "AssignmentExpression[left.property.name=/^(inner|outer)HTML$/]", message: "Cells are text, never markup." },
        { selector: "CallExpression[callee.property.name='insertAdjacentHTML']", message: "Cells are text, never markup." },
      ],
      // Indices are known to be inside where they come from a loop over the same array.
      "@typescript-eslint/no-non-null-assertion": "off",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true, allowBoolean: true, allow: [{ name: "BigInt", from: "lib" }] }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/unbound-method": "off",
    },
  },
);
