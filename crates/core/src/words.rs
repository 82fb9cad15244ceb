//! Enums with a stable word for each variant: labels, codes, values of columns.

/// Defines such an enum, with `ALL` and `as_str`. `ALL` is an `array`, or a `slice` where its length is not part of the interface.
#[macro_export]
macro_rules! words {
    ($kind:ident; $(#[$of_enum:meta])* $visible:vis enum $Name:ident {
        $($(#[$of_variant:meta])* $Variant:ident = $word:literal,)+
    }) => {
        $(#[$of_enum])*
        $visible enum $Name {
            $($(#[$of_variant])* $Variant,)+
        }

        impl $Name {
            $crate::words!(@all $kind $visible $($Variant)+);

            /// Returns the variant's word.
            #[must_use]
            $visible fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }
    };
    (@all array $visible:vis $($Variant:ident)+) => {
        /// All of them.
        $visible const ALL: [Self; [$(stringify!($Variant)),+].len()] = [$(Self::$Variant),+];
    };
    (@all slice $visible:vis $($Variant:ident)+) => {
        /// All of them.
        $visible const ALL: &[Self] = &[$(Self::$Variant),+];
    };
}
