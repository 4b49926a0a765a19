"""The English tables: currencies, units, months, and abbreviations with what they are read as."""

from __future__ import annotations

from dataclasses import dataclass

from voice.spoken.languages import words


@dataclass(frozen=True, slots=True)
class Currency:
    """Names for one and many; no ``cents`` when the currency is not divided in speech."""

    one: str
    many: str
    cent: str = "cent"
    cents: str = "cents"


_DOLLAR = Currency("dollar", "dollars")
_EURO = Currency("euro", "euros")
_POUND = Currency("pound", "pounds", "penny", "pence")
_YEN = Currency("yen", "yen", "", "")
_RUPEE = Currency("rupee", "rupees", "paisa", "paise")
CURRENCIES = {"$": _DOLLAR, "€": _EURO, "£": _POUND, "¥": _YEN, "₹": _RUPEE}
CODES = {
    "USD": Currency("US dollar", "US dollars"),
    "EUR": _EURO,
    "GBP": _POUND,
    "JPY": _YEN,
    "INR": _RUPEE,
    "CHF": Currency("Swiss franc", "Swiss francs", "centime", "centimes"),
    "€": _EURO,
    "£": _POUND,
}

MONTH_NAMES = words("January February March April May June July August September October November December")
MONTHS = {name: i for i, name in enumerate(MONTH_NAMES, 1)} | {
    name[:3]: i for i, name in enumerate(MONTH_NAMES, 1)
}
MONTHS["Sept"] = 9

UNITS = {
    "km": ("kilometer", "kilometers"),
    "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "L": ("liter", "liters"),
    "l": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "ms": ("millisecond", "milliseconds"),
    "sec": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "kcal": ("kilocalorie", "kilocalories"),
    "dB": ("decibel", "decibels"),
    "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "m²": ("square meter", "square meters"),
    "km²": ("square kilometer", "square kilometers"),
    "m³": ("cubic meter", "cubic meters"),
    "sq ft": ("square foot", "square feet"),
}

# Written with a point after them. "St." and "Dr." are read by what stands around them, in ``english``.
TITLES = {
    "mr": "Mister",
    "mrs": "Missus",
    "prof": "Professor",
    "capt": "Captain",
    "sgt": "Sergeant",
    "gen": "General",
    "sen": "Senator",
    "gov": "Governor",
    "rev": "Reverend",
    "lt": "Lieutenant",
    "col": "Colonel",
    "jr": "Junior",
    "sr": "Senior",
    "ave": "Avenue",
    "blvd": "Boulevard",
    "rd": "Road",
    "e.g": "for example",
    "i.e": "that is",
    "etc": "et cetera",
    "vs": "versus",
    "approx": "approximately",
}
